"""Adapts ComfyUI V1 node classes (INPUT_TYPES, RETURN_TYPES, FUNCTION) to node types. Must not know
the executor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

from katz_graph.comfy.missing import absent_base
from katz_graph.comfy.v1.inputs import Declared, socket_of
from katz_graph.comfy.v1.results import from_result, surplus, written_files
from katz_graph.comfy.values import to_pack
from katz_graph.core.errors import InputError
from katz_graph.core.messages import one_line, show
from katz_graph.host.inference import in_inference_mode
from katz_graph.host.run_sync import settled
from katz_graph.node import Node
from katz_graph.node.types import ANY, INSTANCE, Context, Input, NodeType, Output

ABOUT = (
    "DEPRECATED",
    "EXPERIMENTAL",
    "DEV_ONLY",
    "API_NODE",
    "HAS_INTERMEDIATE_OUTPUT",
    "SEARCH_ALIASES",
    "ESSENTIALS_CATEGORY",
)


def v1_nodes(module: ModuleType) -> list[V1Class | type[Node]] | None:
    """Returns the node classes of a module's NODE_CLASS_MAPPINGS; None if it has none."""
    classes = getattr(module, "NODE_CLASS_MAPPINGS", None)
    if not isinstance(classes, Mapping):
        return None
    titles = getattr(module, "NODE_DISPLAY_NAME_MAPPINGS", None)
    known = titles if isinstance(titles, Mapping) else {}
    return [
        cls
        if isinstance(cls, type) and issubclass(cls, Node)
        else V1Class(str(name), cls, str(known.get(name) or name))
        for name, cls in classes.items()
    ]


@dataclass(frozen=True, slots=True)
class V1Class:
    """A node class and the name by which workflows refer to it."""

    name: str
    node_class: Any
    title: str

    def describe(self) -> NodeType:
        """Builds the node type of the class. Calls INPUT_TYPES, which may read files. InputError
        names the node and the problem.
        """
        try:
            return self._described()
        except (Exception, SystemExit) as error:
            what = (
                str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            )
            raise InputError(one_line(f"node {self.name}: {what}")) from error

    def _described(self) -> NodeType:
        cls = self.node_class
        base = absent_base(cls)
        if base is not None:
            raise InputError(f"inherits from {base}, which Katz Graph does not have")
        declared = Declared(cls.INPUT_TYPES)
        inputs, hidden = declared.inputs(), declared.hidden()
        function = getattr(cls, "FUNCTION", None)
        if not isinstance(function, str) or not callable(getattr(cls, function, None)):
            raise InputError(f"FUNCTION is {show(function)}, which is not a method of the class")
        outputs = tuple(_outputs(cls))
        gives = tuple(map(bool, getattr(cls, "OUTPUT_IS_LIST", None) or ()))[: len(outputs)]
        gives += (False,) * (len(outputs) - len(gives))
        takes_lists = bool(getattr(cls, "INPUT_IS_LIST", False))
        is_output = bool(getattr(cls, "OUTPUT_NODE", False))
        validate = _class_method(cls, "VALIDATE_INPUTS")
        accepted = _Accepted(validate) if validate is not None else None
        return NodeType(
            name=self.name,
            display_name=self.title,
            category=str(getattr(cls, "CATEGORY", "") or ""),
            description=inspect.cleandoc(str(getattr(cls, "DESCRIPTION", "") or "")),
            inputs=inputs,
            outputs=outputs,
            is_output=is_output,
            run=in_inference_mode(
                _runner(
                    cls,
                    function,
                    inputs,
                    takes_lists,
                    partial(_taken, self.name, outputs, gives, is_output),
                )
            ),
            needs=_needs(cls, inputs, takes_lists),
            fingerprint=_fingerprint(cls),
            takes_lists=takes_lists,
            gives_lists=gives,
            hidden=hidden,
            unlisted=declared.unlisted(),
            undeclared="all" if declared.takes_any_name() else "links",
            check=None if validate is None else partial(_problems, validate, takes_lists),
            unchecked=frozenset()
            if accepted is None
            else frozenset(name for name in inputs if name in accepted),
            instance=cls,
            per_node=bool(getattr(cls, "NOT_IDEMPOTENT", False)),
            links_unchecked=accepted is not None and "input_types" in accepted.names,
            fingerprint_linked=False,
            about=_about(cls),
        )


class _Accepted:
    """The arguments that a function accepts by name."""

    def __init__(self, function: Callable[..., Any]) -> None:
        parameters = inspect.signature(function).parameters.values()
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self.any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters)
        self.names = {parameter.name for parameter in parameters if parameter.kind in named}
        self.must = {
            p.name for p in parameters if p.kind in named and p.default is inspect.Parameter.empty
        }

    def __contains__(self, name: str) -> bool:
        return self.any or name in self.names

    def of(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the accepted values; None for required arguments without a value."""
        return dict.fromkeys(self.must) | {
            name: value for name, value in values.items() if name in self
        }


def _class_method(cls: Any, name: str) -> Callable[..., Any] | None:
    """Returns a class method, even if the pack forgot `classmethod`."""
    method = getattr(cls, name, None)
    if not callable(method):
        return None
    plain = inspect.isfunction(inspect.getattr_static(cls, name))
    first = next(iter(inspect.signature(method).parameters), "")
    return (
        partial(method, cls) if plain and first in ("self", "cls", "s", "c", "class_") else method
    )


def _runner(
    cls: Any,
    function: str,
    inputs: Mapping[str, Input],
    takes_lists: bool,
    taken: Callable[[Context, Any], Any],
) -> Callable[[Context, Mapping[str, Any]], Any]:
    def called(values: Mapping[str, Any]) -> Any:
        return getattr(values[INSTANCE], function)(**_packed(values, inputs, takes_lists))

    def finished(context: Context, result: Any) -> Any:
        given = taken(context, result)
        for path in written_files(given, context.output_directory):
            context.wrote(path)
        return given

    async def run_async(context: Context, values: Mapping[str, Any]) -> Any:
        return finished(context, await called(values))

    is_async = inspect.iscoroutinefunction(getattr(cls, function))
    return run_async if is_async else lambda context, values: finished(context, called(values))


def _taken(
    name: str,
    outputs: Sequence[Output],
    gives_lists: Sequence[bool],
    is_output: bool,
    context: Context,
    result: Any,
) -> Any:
    """Converts a node's result. Warns of values beyond its outputs, and drops them."""
    further = surplus(result, outputs)
    if further:
        context.warn(
            f"{name}: returned {further} values more than its {len(outputs)} declared outputs; "
            "they were left out"
        )
    return from_result(result, outputs, gives_lists, is_output)


def _packed(
    values: Mapping[str, Any], inputs: Mapping[str, Input], takes_lists: bool
) -> dict[str, Any]:
    """Converts argument values to the objects that packs expect."""
    packed: dict[str, Any] = {}
    for name, value in values.items():
        if name == INSTANCE:
            continue
        port = inputs.get(name)
        socket = ANY if port is None else port.socket
        packed[name] = (
            [to_pack(one, socket) for one in value] if takes_lists else to_pack(value, socket)
        )
    return packed


def _needs(
    cls: Any, inputs: Mapping[str, Input], takes_lists: bool
) -> Callable[[Mapping[str, Any]], Any] | None:
    if not callable(getattr(cls, "check_lazy_status", None)):
        return None

    def needs(values: Mapping[str, Any]) -> Any:
        method = values[INSTANCE].check_lazy_status
        return method(**_Accepted(method).of(_packed(values, inputs, takes_lists)))

    return in_inference_mode(needs)


def _fingerprint(cls: Any) -> Callable[[Context, Mapping[str, Any]], Any] | None:
    is_changed = _class_method(cls, "IS_CHANGED")
    if is_changed is None:
        return None
    accepted = _Accepted(is_changed)
    return in_inference_mode(lambda context, values: is_changed(**accepted.of(values)))


def _problems(
    validate: Callable[..., Any],
    takes_lists: bool,
    literals: Mapping[str, Any],
    sockets: Mapping[str, str],
) -> Iterator[tuple[str, str]]:
    """Calls VALIDATE_INPUTS, which returns True or an error message. Linked inputs are passed as
    None.
    """
    values = {**dict.fromkeys(sockets), **literals}
    accepted = _Accepted(validate)
    if "input_types" in accepted.names:
        values["input_types"] = dict(sockets)
    arguments = accepted.of(values)
    result = settled(
        validate(
            **({name: [value] for name, value in arguments.items()} if takes_lists else arguments)
        )
    )
    if result is not True:
        yield (
            "",
            str(result)
            if isinstance(result, str) and result
            else "the node's own check rejected these inputs",
        )


def _outputs(cls: Any) -> Iterator[Output]:
    kinds = getattr(cls, "RETURN_TYPES", ())
    names = getattr(cls, "RETURN_NAMES", None) or ()
    for number, kind in enumerate((kinds,) if isinstance(kinds, str) else kinds):
        socket = socket_of(kind)
        name = names if isinstance(names, str) else names[number] if number < len(names) else None
        yield Output(str(name or socket), socket)


def _about(cls: Any) -> dict[str, Any]:
    said = {name.lower(): getattr(cls, name) for name in ABOUT if getattr(cls, name, None)}
    tooltips = getattr(cls, "OUTPUT_TOOLTIPS", None)
    return said | ({"output_tooltips": list(tooltips)} if tooltips else {})
