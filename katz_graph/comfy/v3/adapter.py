"""Turns ComfyUI V3 classes into V1 classes, whose adapter makes node types of both. Must not know
how nodes run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from types import ModuleType
from typing import Any

from katz_graph.comfy.v1.adapter import V1Class, v1_nodes
from katz_graph.comfy.v1.inputs import Declared
from katz_graph.comfy.v3.dynamic import Flat, Gathering, flat, gathers
from katz_graph.comfy.v3.inputs import Input, Output, WidgetInput
from katz_graph.comfy.v3.schema import (
    ComfyExtension,
    ComfyNode,
    Hidden,
    HiddenHolder,
    NodeOutput,
    Schema,
)
from katz_graph.comfy.v3.ui import as_dict
from katz_graph.errors import InputError
from katz_graph.host.run_sync import settled
from katz_graph.node import Input as InputPort
from katz_graph.node import Node, NodeType, ShownFor
from katz_graph.scope import ExecutionBlocker

HIDDEN = "hidden_"  # before the names of hidden values, so that an input may have the same name
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
# options, for editors
RENAMED = {
    "display_mode": "display",
    "dynamic_prompts": "dynamicPrompts",
    "widget_type": "widgetType",
}
OPTIONAL_METHODS = {
    "validate_inputs": "VALIDATE_INPUTS",
    "fingerprint_inputs": "IS_CHANGED",
    "check_lazy_status": "check_lazy_status",
}


def mapped_nodes(module: ModuleType) -> list[V1Class | V3Class | type[Node]] | None:
    """Returns the NODE_CLASS_MAPPINGS of a module, whose classes may be of either convention; None
    when it has none.
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
    """Returns the node classes of a module's extension; None when it has no extension. TypeError
    where its entry point gives something else.
    """
    entry = getattr(module, "comfy_entrypoint", None)
    if entry is None:
        return None
    extension = settled(entry())
    if not isinstance(extension, ComfyExtension):
        raise TypeError(
            f"comfy_entrypoint gave a {type(extension).__name__}, expected a ComfyExtension"
        )
    settled(extension.on_load())
    return [V3Class(kind) for kind in settled(extension.get_node_list())]


@dataclass(frozen=True, slots=True)
class V3Class:
    """A class with a schema. `name` and `title`: what its pack calls it, if not what that says."""

    node_class: type[ComfyNode]
    name: str = ""
    title: str = ""

    def describe(self) -> NodeType:
        """Describes the class. TypeError, or the pack's own error, for an unreadable schema."""
        schema = self.node_class.GET_SCHEMA()
        described = V1Class(
            self.name or schema.node_id,
            first_convention(self.node_class, schema),
            # without a name for people a pack's mapping repeats the other one
            self.title if self.title != self.name else schema.display_name or schema.node_id,
        ).describe()
        unfolded = _unfolded(schema)
        exact = [_exact(one) for one in unfolded]
        inputs = {
            name: _merged(port, [one for one in exact if one.name == name])
            for name, port in _in_groups(described.inputs, unfolded)
        }
        return replace(
            described,
            inputs=inputs,
            brings=_brings(exact),
            unchecked=_unchecked(self.node_class, described) & inputs.keys(),
            undeclared="all" if schema.accept_all_inputs else described.undeclared,
        )


def _in_groups(
    inputs: Mapping[str, InputPort], unfolded: Sequence[Flat]
) -> Iterator[tuple[str, InputPort]]:
    """Yields the inputs by name, those of a group one behind the other."""
    groups: dict[str, str] = {one.port.id: one.grows.group for one in unfolded if one.grows}
    together: dict[str, list[str]] = {}
    for name in inputs:
        together.setdefault(groups.get(name, name), []).append(name)
    for name in chain.from_iterable(together.values()):
        yield name, inputs[name]


def _exact(one: Flat) -> InputPort:
    """Makes the input as one value of a choice brings it."""
    group = "optional" if one.port.optional else "required"
    (port,) = Declared(lambda: {group: {one.port.id: _declared(one.port)}}).inputs().values()
    return replace(port, shown_for=one.shown_for, grows=one.grows)


def _merged(port: InputPort, exact: Sequence[InputPort]) -> InputPort:
    """Returns what takes all that values of a choice let an input be."""
    first, *others = exact
    shown = [one.shown_for for one in exact if one.shown_for]
    made = replace(port, grows=first.grows)
    if shown:
        keys = tuple(dict.fromkeys(key for one in shown for key in one.choices))
        made = replace(made, required=False, shown_for=ShownFor(shown[0].knob, keys))
    if all(_told_of(one) == _told_of(first) for one in others):
        return made
    sockets = dict.fromkeys(name for one in exact for name in one.socket.split(","))
    choices = [one.choices for one in exact]
    least, most = ([getattr(one, end) for one in exact] for end in ("minimum", "maximum"))
    return replace(
        made,
        socket=",".join(sockets),
        knob=any(one.knob for one in exact),
        choices=None
        if None in choices
        else tuple(dict.fromkeys(key for keys in choices for key in keys or ())),
        minimum=None if None in least else min(least),
        maximum=None if None in most else max(most),
        check=first.check if len(sockets) == 1 else (lambda value: value),
        refresh=None,
    )


def _told_of(port: InputPort) -> tuple[Any, ...]:
    return port.socket, port.knob, port.choices, port.minimum, port.maximum


def _brings(exact: Sequence[InputPort]) -> dict[str, dict[str, tuple[InputPort, ...]]]:
    """Maps choices and their values to the inputs that these bring, required ones first."""
    made: dict[str, dict[str, dict[str, InputPort]]] = {}
    for one in exact:
        for key in one.shown_for.choices if one.shown_for else ():
            assert one.shown_for is not None
            made.setdefault(one.shown_for.knob, {}).setdefault(key, {}).setdefault(one.name, one)
    return {
        knob: {
            key: tuple(sorted(ports.values(), key=lambda port: not port.required))
            for key, ports in keys.items()
        }
        for knob, keys in made.items()
    }


def _unchecked(kind: type[ComfyNode], described: NodeType) -> frozenset[str]:
    """Returns the inputs that the class checks itself, by their own names or those of groups."""
    own = getattr(kind, "validate_inputs", None)
    if own is None:
        return frozenset()
    parameters = inspect.signature(own).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(
        name for name in described.inputs if takes_all or name.partition(".")[0] in parameters
    )


def first_convention(kind: type[ComfyNode], schema: Schema) -> type:
    """Makes a V1 class that does what `kind` does. TypeError names an input that cannot be
    unfolded.
    """
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
    """Copies the class, with the hidden values of one call."""
    return type(kind.__name__, (kind,), {"hidden": HiddenHolder(hidden)})


def _parted(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Separates inputs from hidden values, by their name."""
    hidden = {
        name.removeprefix(HIDDEN): value
        for name, value in values.items()
        if name.startswith(HIDDEN)
    }
    return {name: value for name, value in values.items() if not name.startswith(HIDDEN)}, hidden


def _accepts() -> bool:
    """Stands for the check of a class that has none: what is gathered is checked all the same."""
    return True


def _method(theirs: Callable[..., Any], name: str, schema: Schema) -> Any:
    """Makes a class method with the same parameters, which tell the V1 adapter what it checks, and
    one for all values where some are gathered.
    """
    own = list(inspect.signature(theirs).parameters.values())
    accepted = {parameter.name for parameter in own}
    everything = inspect.Parameter("values", inspect.Parameter.VAR_KEYWORD)
    takes_all = any(parameter.kind is everything.kind for parameter in own)
    gathering = Gathering(schema.inputs, schema.is_input_list, name == "check_lazy_status")
    parameters = [
        inspect.Parameter("cls", inspect.Parameter.POSITIONAL_OR_KEYWORD),
        *own,
        *([everything] if gathers(schema.inputs) and not takes_all else []),
    ]

    def call(cls: Any, *given: Any, **named: Any) -> Any:
        values, _ = _parted(named)
        if gathers(schema.inputs):
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
        raise TypeError(f"execute gave a {type(given).__name__}, expected an io.NodeOutput")
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
        group.setdefault(one.port.id, _declared(one.port))
    groups["hidden"] = {
        f"{HIDDEN}{hidden.name}": hidden.value for hidden in map(Hidden, schema.hidden)
    }
    return groups


def _declared(port: Input) -> tuple[Any, dict[str, Any]]:
    """Returns type and options of an input as V1 writes them."""
    widget = getattr(port, "widget", None)
    said = {**(widget.options if widget is not None else {}), **port.options}
    options = {
        RENAMED.get(name, name): getattr(value, "value", value)
        for name, value in said.items()
        if value is not None
    }
    flags = {"lazy": port.lazy, "rawLink": port.raw_link, "advanced": port.advanced}
    texts = {"tooltip": port.tooltip, "display_name": port.display_name}
    options |= {name: True for name, is_so in flags.items() if is_so} | {
        name: text for name, text in texts.items() if text
    }
    knob = port if isinstance(port, WidgetInput) else widget
    if isinstance(knob, WidgetInput):
        options |= {"default": knob.default} if knob.default is not None else {}
        options |= {"forceInput": True} if knob.force_input else {}
    upload = options.pop("upload", None)
    if upload is not None:
        options[str(upload)] = True
    choices = getattr(knob, "choices", None)
    if not choices and "remote" in options:  # only a client asks for them
        choices = None
    if widget is not None:  # one of several types, drawn as this one
        options |= {"widgetType": widget.get_io_type()} | (
            {} if choices is None else {"options": choices}
        )
        choices = None
    return (port.get_io_type() if choices is None else choices), options


def _output_name(output: Output) -> str:
    return output.display_name or output.id or output.get_io_type()
