"""Converts ComfyUI V3 classes to V1 classes; the V1 adapter builds the node types of both. Must not
know how nodes run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from katz_graph.comfy.v1.adapter import V1Class, v1_nodes
from katz_graph.comfy.v3.dynamic import Flat, Gathering, flat, gathers
from katz_graph.comfy.v3.inputs import Output
from katz_graph.comfy.v3.ports import belonging, declared
from katz_graph.comfy.v3.schema import (
    ComfyExtension,
    ComfyNode,
    Hidden,
    HiddenHolder,
    NodeOutput,
    Schema,
)
from katz_graph.comfy.v3.ui import as_dict
from katz_graph.core.errors import InputError
from katz_graph.host.run_sync import settled
from katz_graph.node import Node
from katz_graph.node.scope import ExecutionBlocker
from katz_graph.node.types import NodeType

HIDDEN = "hidden_"  # prefix of the names of hidden values, so that an input may have the same name
SAID = {
    "is_deprecated": "DEPRECATED",
    "is_experimental": "EXPERIMENTAL",
    "is_dev_only": "DEV_ONLY",
    "is_api_node": "API_NODE",
    "not_idempotent": "NOT_IDEMPOTENT",
    "has_intermediate_output": "HAS_INTERMEDIATE_OUTPUT",
    "search_aliases": "SEARCH_ALIASES",
    "essentials_category": "ESSENTIALS_CATEGORY",
}
OPTIONAL_METHODS = {
    "validate_inputs": "VALIDATE_INPUTS",
    "fingerprint_inputs": "IS_CHANGED",
    "check_lazy_status": "check_lazy_status",
}


def mapped_nodes(module: ModuleType) -> list[V1Class | V3Class | type[Node]] | None:
    """Returns the node classes of a module's NODE_CLASS_MAPPINGS, which may be V1 or V3; None if it
    has none.
    """
    found = v1_nodes(module)
    if found is None:
        return None
    return [
        V3Class(one.node_class, one.name, one.title)
        if isinstance(one, V1Class)
        and isinstance(one.node_class, type)
        and issubclass(one.node_class, ComfyNode)
        else one
        for one in found
    ]


def v3_nodes(module: ModuleType) -> list[V3Class] | None:
    """Returns the node classes of a module's extension; None if it has no extension. TypeError if
    its entry point returns another type.
    """
    entry = getattr(module, "comfy_entrypoint", None)
    if entry is None:
        return None
    extension = settled(entry())
    if not isinstance(extension, ComfyExtension):
        raise TypeError(
            f"comfy_entrypoint returned a {type(extension).__name__}, expected a ComfyExtension"
        )
    settled(extension.on_load())
    return [V3Class(kind) for kind in settled(extension.get_node_list())]


@dataclass(frozen=True, slots=True)
class V3Class:
    """A class with a schema. `name` and `title` are given by the pack's mapping, and override those
    of the schema.
    """

    node_class: type[ComfyNode]
    name: str = ""
    title: str = ""

    def describe(self) -> NodeType:
        """Builds the node type of the class. TypeError or the pack's own exception for an
        unreadable schema.
        """
        schema = self.node_class.GET_SCHEMA()
        described = V1Class(
            self.name or schema.node_id,
            first_convention(self.node_class, schema),
            # a pack's mapping without display names repeats the node's name
            self.title if self.title != self.name else schema.display_name or schema.node_id,
        ).describe()
        if schema.accept_all_inputs:
            described = replace(described, undeclared="all")
        if not gathers(schema.inputs):
            return described
        inputs, choice_inputs = belonging(described.inputs, _unfolded(schema))
        unchecked = _unchecked(self.node_class, described)
        return replace(described, inputs=inputs, choice_inputs=choice_inputs, unchecked=unchecked)


def _unchecked(kind: type[ComfyNode], described: NodeType) -> frozenset[str]:
    """Returns the inputs that the class itself validates, matched by input or group name."""
    own = getattr(kind, "validate_inputs", None)
    if own is None:
        return frozenset()
    parameters = inspect.signature(own).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(
        name for name in described.inputs if takes_all or name.partition(".")[0] in parameters
    )


def first_convention(kind: type[ComfyNode], schema: Schema) -> type:
    """Builds a V1 class with the behaviour of `kind`. TypeError names an unsupported input."""
    gathering = Gathering(schema.inputs, schema.is_input_list)

    def execute(self: Any, **values: Any) -> Any:
        given, hidden = _parted(values)
        return _result(schema, _bound(kind, hidden).execute(**gathering.of(given)))

    async def execute_async(self: Any, **values: Any) -> Any:
        given, hidden = _parted(values)
        return _result(schema, await _bound(kind, hidden).execute(**gathering.of(given)))

    members: dict[str, Any] = {
        "INPUT_TYPES": classmethod(lambda cls: _input_types(kind.GET_SCHEMA())),
        "RETURN_TYPES": tuple(output.get_io_type() for output in schema.outputs),
        "RETURN_NAMES": tuple(_output_name(output) for output in schema.outputs),
        "OUTPUT_TOOLTIPS": tuple(output.tooltip or "" for output in schema.outputs),
        "OUTPUT_IS_LIST": tuple(output.is_output_list for output in schema.outputs),
        "INPUT_IS_LIST": schema.is_input_list,
        "OUTPUT_NODE": schema.is_output_node,
        "CATEGORY": schema.category,
        "DESCRIPTION": schema.description,
        "FUNCTION": "execute",
        "execute": execute_async if inspect.iscoroutinefunction(kind.execute) else execute,
        "__module__": kind.__module__,
        **{theirs: value for ours, theirs in SAID.items() if (value := getattr(schema, ours))},
        **{
            theirs: _method(getattr(kind, ours, _accepts), theirs, schema)
            for ours, theirs in OPTIONAL_METHODS.items()
            if hasattr(kind, ours) or (ours == "validate_inputs" and gathers(schema.inputs))
        },
    }
    return type(schema.node_id, (), members)


def _unfolded(schema: Schema) -> list[Flat]:
    try:
        return list(flat(schema.inputs))
    except TypeError as error:
        raise TypeError(f"node {schema.node_id}: {error}") from None


def _bound(kind: type[ComfyNode], hidden: Mapping[str, Any]) -> type[ComfyNode]:
    """Creates a subclass with the hidden values of one call."""
    return type(kind.__name__, (kind,), {"hidden": HiddenHolder(hidden)})


def _parted(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates inputs from hidden values by their name prefix."""
    hidden = {
        name.removeprefix(HIDDEN): value
        for name, value in values.items()
        if name.startswith(HIDDEN)
    }
    return {name: value for name, value in values.items() if not name.startswith(HIDDEN)}, hidden


def _accepts() -> bool:
    """Accepts all values. Replaces a missing `validate_inputs`, so that `Gathering` can check
    values.
    """
    return True


def _method(theirs: Callable[..., Any], name: str, schema: Schema) -> Any:
    """Builds a class method with the parameters of `theirs`, from which the V1 adapter derives the
    validated inputs. It accepts any argument if some inputs are passed as objects.
    """
    own = list(inspect.signature(theirs).parameters.values())
    accepted = {parameter.name for parameter in own}
    everything = inspect.Parameter("values", inspect.Parameter.VAR_KEYWORD)
    takes_all = any(parameter.kind is everything.kind for parameter in own)
    gathering = Gathering(schema.inputs, schema.is_input_list, name == "check_lazy_status")
    gathered = gathers(schema.inputs)
    parameters = [
        inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *own,
        *([everything] if gathered and not takes_all else []),
    ]

    def call(cls: Any, *given: Any, **named: Any) -> Any:
        values, _ = _parted(named)
        if gathered:
            try:
                values = gathering.of(values)
            except InputError as error:
                if name == "VALIDATE_INPUTS":
                    return str(error)
                raise
            values = {key: one for key, one in values.items() if takes_all or key in accepted}
        return theirs(*given, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return classmethod(call)


def _result(schema: Schema, given: Any) -> Any:
    """Converts the result of `execute` to a V1 result."""
    if given is None:
        given = NodeOutput()
    elif isinstance(given, Mapping):
        given = NodeOutput.from_dict(given)
    elif isinstance(given, tuple):
        given = NodeOutput(*given)
    elif isinstance(given, ExecutionBlocker):
        given = NodeOutput(block_execution=given.message)
    if not isinstance(given, NodeOutput):
        raise TypeError(f"execute returned a {type(given).__name__}, expected an io.NodeOutput")
    values = (
        tuple(ExecutionBlocker(given.block_execution) for _ in schema.outputs)
        if given.block_execution is not None
        else given.args
    )
    result: dict[str, Any] = {"result": values}
    if given.ui is not None:
        result["ui"] = as_dict(given.ui)
    if given.expand is not None:
        result["expand"] = given.expand
    return result


def _input_types(schema: Schema) -> dict[str, Any]:
    groups: dict[str, dict[str, Any]] = {"required": {}, "optional": {}}
    for one in _unfolded(schema):
        group = groups["optional" if one.port.optional or one.shown_for else "required"]
        group.setdefault(one.port.id, declared(one.port))
    groups["hidden"] = {
        f"{HIDDEN}{hidden.name}": hidden.value for hidden in map(Hidden, schema.hidden)
    }
    return groups


def _output_name(output: Output) -> str:
    return output.display_name or output.id or output.get_io_type()
