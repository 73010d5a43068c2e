"""Defines node types by classes: fields are knobs, arguments of `run` are wires, and the return
type gives the outputs.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.graph import Expansion
from katz_graph.host.inference import in_inference_mode
from katz_graph.node.types import (
    ANY,
    KNOB_SOCKETS,
    VARIADIC,
    Context,
    Growing,
    Input,
    NodeType,
    Output,
    ShownFor,
    Widget,
    WithUi,
)
from katz_graph.node.wires import Socket

WRAPPED = re.compile(r"(?<=\S)\n(?=\S)")  # a line break inside a paragraph
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Makes a knob a choice of files from one model folder (`checkpoints`, `loras`, `controlnet`,
    `vae`, `input`).
    """

    folder: str


@dataclass(frozen=True, slots=True)
class Grows:
    """Makes an argument of `run` a growing group of wires: `run` gets a mapping of the linked wires
    by name. The first `least` are required. `prefix`: common prefix of numbered names, from 0.
    """

    names: tuple[str, ...]
    least: int = 1
    prefix: str | None = None

    @classmethod
    def numbered(cls, prefix: str, most: int, least: int = 1) -> Grows:
        """Returns a group with numbered names."""
        return cls(tuple(f"{prefix}{number}" for number in range(most)), least, prefix)


class Node(BaseModel):
    """Base class of native nodes. Fields are knobs; arguments of `run` are wires (`*name` stands
    for name_1 to name_8).

    `context: Context` in `run` gives access to the services of the running graph.

    Class arguments: `title` for users; `category`; `output=True` for a node that runs for its side
    effect; `names=(...)` names outputs; `lazy=(...)` lists wires that `needs` requests one by one;
    `optional=(...)` lists knobs that API prompts may omit, which then take their defaults;
    `stage="..."` for a node of the denoising loop; `takes_lists=True` for a node whose wires
    deliver whole lists (knobs take their first element); `gives_lists=(...)` marks outputs that are
    lists.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    node_category: ClassVar[str] = ""
    node_is_output: ClassVar[bool] = False
    node_output_names: ClassVar[tuple[str, ...]] = ()
    node_lazy: ClassVar[tuple[str, ...]] = ()
    node_optional: ClassVar[tuple[str, ...]] = ()
    node_stage: ClassVar[str | None] = None
    node_takes_lists: ClassVar[bool] = False
    node_gives_lists: ClassVar[tuple[bool, ...]] = ()

    @classmethod
    def __init_subclass__(
        cls,
        *,
        category: str = "",
        output: bool = False,
        names: tuple[str, ...] = (),
        lazy: tuple[str, ...] = (),
        optional: tuple[str, ...] = (),
        stage: str | None = None,
        takes_lists: bool = False,
        gives_lists: tuple[bool, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init_subclass__(**kwargs)
        cls.node_category = category
        cls.node_is_output = output
        cls.node_output_names = names
        cls.node_lazy = lazy
        cls.node_optional = optional
        cls.node_stage = stage
        cls.node_takes_lists = takes_lists
        cls.node_gives_lists = gives_lists

    @classmethod
    def describe(cls) -> NodeType:
        """Returns the description of this class. Raises TypeError if a field or argument has a type
        without a socket.
        """
        run = cls.__dict__.get("run") or getattr(cls, "run", None)
        if run is None:
            raise TypeError(f"{cls.__name__} has no run method")
        signature = inspect.signature(run, eval_str=True)
        wires = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if name not in ("self", "context")
        }
        variadic = next(
            (name for name, wire in wires.items() if wire.kind is inspect.Parameter.VAR_POSITIONAL),
            None,
        )
        inputs = {
            port.name: port
            for ports in (
                *(_wires(cls, name, parameter) for name, parameter in wires.items()),
                [_knob(cls, name, field) for name, field in cls.model_fields.items()],
            )
            for port in ports
        }
        _check_choices(cls, inputs)
        # names in graphs -> names of fields and arguments, if they differ
        own = {port.name: port.own_name for port in inputs.values() if port.shown_for is not None}
        groups = {port.grows.group for port in inputs.values() if port.grows is not None}
        takes_context = "context" in signature.parameters
        needed = tuple(
            name
            for name, parameter in wires.items()
            if _cannot_be_none(inputs.get(name), parameter.annotation)
        ) + tuple(name for name, port in inputs.items() if port.grows and port.required)

        def renamed(values: Mapping[str, Any]) -> Mapping[str, Any]:
            if not own and not groups:
                return values
            made: dict[str, Any] = {group: {} for group in groups}
            for name, port in inputs.items():  # in declared order, not the graph's
                if port.grows is not None and values.get(name) is not None:
                    made[port.grows.group][port.own_name] = values[name]
            rest = (name for name in values if name not in inputs or not inputs[name].grows)
            return made | {own.get(name, name): values[name] for name in rest}

        def build(given: Mapping[str, Any]) -> Node:
            values = renamed(given)
            knobs = {name: value for name, value in values.items() if name in cls.model_fields}
            return cls(
                **(
                    {name: _first(name, value) for name, value in knobs.items()}
                    if cls.node_takes_lists
                    else knobs
                )
            )

        def call(context: Context, given: Mapping[str, Any]) -> Any:
            values = renamed(given)
            arguments = {name: value for name, value in values.items() if name in wires}
            for name in needed:
                # packs may return None for a declared output
                if values.get(name, given.get(name)) is None:
                    raise RunError(
                        f"input {name}: the linked node returned nothing, expected "
                        f"{inputs[name].socket}"
                    )
            if takes_context:
                arguments["context"] = context
            if variadic is None:
                return run(build(given), **arguments)
            leading = [
                arguments.pop(name, wire.default)
                for name, wire in wires.items()
                if wire.kind is wire.POSITIONAL_OR_KEYWORD
            ]
            return run(
                build(given),
                *leading,
                *(values.get(name) for name in _numbered(variadic)),
                **arguments,
            )

        def outputs_of(result: Any) -> Any:
            if isinstance(result, WithUi):
                return WithUi(outputs_of(result.result), result.ui)
            if several or isinstance(result, Expansion):
                return result
            return (result,) if outputs else ()

        async def run_async(context: Context, values: Mapping[str, Any]) -> Any:
            return outputs_of(await call(context, values))

        outputs = _outputs(cls, signature.return_annotation)
        # a single output may be a tuple itself
        several = get_origin(signature.return_annotation) is tuple
        needs = getattr(cls, "needs", None)
        fingerprint = getattr(cls, "fingerprint", None)
        return NodeType(
            name=cls.__name__,
            display_name=cls.model_config.get("title") or cls.__name__,
            category=cls.node_category,
            description=WRAPPED.sub(" ", inspect.cleandoc(cls.__doc__ or "")),
            inputs=inputs,
            outputs=outputs,
            is_output=cls.node_is_output,
            run=in_inference_mode(
                run_async
                if inspect.iscoroutinefunction(run)
                else lambda context, values: outputs_of(call(context, values))
            ),
            needs=None
            if needs is None
            else in_inference_mode(
                lambda values: needs(
                    build(values), **{n: v for n, v in renamed(values).items() if n in wires}
                )
            ),
            fingerprint=None
            if fingerprint is None
            else in_inference_mode(lambda context, values: fingerprint(build(values), context)),
            stage=cls.node_stage,
            takes_lists=cls.node_takes_lists,
            gives_lists=cls.node_gives_lists,
        )


def _first(name: str, values: Sequence[Any]) -> Any:
    if not values:
        raise InputError(f"input {name}: got an empty list, expected at least one value")
    return values[0]


def _unwrap_optional(annotation: Any) -> Any:
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        if len(members) == 1:
            return members[0]
    return annotation


def _cannot_be_none(wire: Input | None, annotation: Any) -> bool:
    return (
        wire is not None
        and wire.required
        and not wire.lazy
        and wire.socket != ANY
        and _unwrap_optional(annotation) is annotation
    )


def _socket(annotation: Any) -> str | None:
    annotation = _unwrap_optional(annotation)
    if annotation is Any:
        return ANY
    if get_origin(annotation) is Annotated:
        for note in annotation.__metadata__:
            if isinstance(note, Socket):
                return note.name
        return _socket(annotation.__origin__)
    if get_origin(annotation) is Literal:
        return "COMBO"
    return KNOB_SOCKETS.get(annotation)


def _wires(cls: type[Node], name: str, parameter: inspect.Parameter) -> list[Input]:
    socket = _socket(parameter.annotation)
    if parameter.annotation is inspect.Parameter.empty:
        raise TypeError(
            f"{cls.__name__}.run: argument {name!r} has no type; give it one of "
            "katz_graph.node.wires, such as Image"
        )
    if socket is None:
        raise TypeError(
            f"{cls.__name__}.run: argument {name!r} has type {parameter.annotation!r}, which has "
            "no socket"
        )
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return [Input(numbered, socket, required=False, knob=False) for numbered in _numbered(name)]
    grows, shown_for = _note(parameter.annotation, Grows), _note(parameter.annotation, ShownFor)
    if grows is not None:
        if name in cls.node_lazy or shown_for or parameter.default is not inspect.Parameter.empty:
            raise TypeError(
                f"{cls.__name__}.run: {name!r} is a group of wires, which cannot have a default, "
                "be lazy or belong to a choice"
            )
        group = Growing(name, grows.prefix, grows.least)
        return [
            Input(
                f"{name}.{one}",
                socket,
                required=number < grows.least,
                knob=False,
                check=_union_check(socket),
                grows=group,
            )
            for number, one in enumerate(grows.names)
        ]
    return [
        Input(
            _graph_name(name, shown_for),
            socket,
            required=parameter.default is inspect.Parameter.empty,
            knob=False,
            lazy=name in cls.node_lazy,
            check=_union_check(socket),
            shown_for=shown_for,
        )
    ]


def _union_check(socket: str) -> Callable[[Any], Any] | None:
    """Returns the check of literals for a wire with several types; None if none of the types has a
    widget. A literal must have one of the types with a widget.
    """
    plain = [kind for kind, name in KNOB_SOCKETS.items() if name in socket.split(",")]
    if "," not in socket or not plain:
        return None

    def check(value: Any) -> Any:
        if type(value) not in plain:
            raise ValueError
        return value

    return check


def _note(annotation: Any, kind: type[T]) -> T | None:
    """Returns the metadata of this class in an annotation, or None."""
    annotation = _unwrap_optional(annotation)
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((note for note in notes if isinstance(note, kind)), None)


def _check_choices(cls: type[Node], inputs: Mapping[str, Input]) -> None:
    """Raises TypeError if an input with `shown_for` names an unknown choice or is required."""
    for port in inputs.values():
        if (belongs := port.shown_for) is None:
            continue
        chooser = inputs.get(belongs.knob)
        choices = () if chooser is None else chooser.choices or ()
        if not set(belongs.choices) <= set(choices):
            raise TypeError(
                f"{cls.__name__}: {port.own_name!r} is shown for {belongs.choices!r} of "
                f"{belongs.knob!r}, which has only {choices!r}"
            )
        if port.required:
            raise TypeError(
                f"{cls.__name__}: {port.own_name!r} is not shown for every choice of "
                f"{belongs.knob!r}, so it needs a default"
            )


def _graph_name(name: str, shown_for: ShownFor | None) -> str:
    return name if shown_for is None else f"{shown_for.knob}.{name}"


def _numbered(name: str) -> tuple[str, ...]:
    return tuple(f"{name}_{number}" for number in range(1, VARIADIC + 1))


def _knob(cls: type[Node], name: str, info: FieldInfo) -> Input:
    socket = _socket(info.annotation)
    notes = list(info.metadata)
    folder = next((note.folder for note in notes if isinstance(note, FileChoice)), None)
    shown_for = next((note for note in notes if isinstance(note, ShownFor)), None)
    if socket is None:
        raise TypeError(
            f"{cls.__name__}: field {name!r} has type {info.annotation!r}, which has no socket"
        )
    annotation = Annotated[(info.annotation, *notes)] if notes else info.annotation
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)  # type: ignore[arg-type]
    return Input(
        name=_graph_name(name, shown_for),
        socket="COMBO" if folder else socket,
        required=info.is_required(),
        knob=True,
        default=None if info.default is PydanticUndefined else info.default,
        minimum=next(
            (n.ge if isinstance(n, Ge) else n.gt for n in notes if isinstance(n, (Ge, Gt))), None
        ),  # type: ignore[arg-type]
        maximum=next(
            (n.le if isinstance(n, Le) else n.lt for n in notes if isinstance(n, (Le, Lt))), None
        ),  # type: ignore[arg-type]
        choices=get_args(info.annotation) if get_origin(info.annotation) is Literal else None,
        folder=folder,
        help=info.description or "",
        widget=next((note for note in notes if isinstance(note, Widget)), Widget()),
        check=adapter.validate_python,
        shown_for=shown_for,
        optional=name in cls.node_optional,
    )


def _outputs(cls: type[Node], annotation: Any) -> tuple[Output, ...]:
    if annotation is None or annotation is inspect.Signature.empty:
        return ()
    members = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
    sockets = [_socket(member) for member in members]
    if None in sockets:
        raise TypeError(
            f"{cls.__name__}.run: the return type {annotation!r} has a part without a socket"
        )
    names = cls.node_output_names or tuple(str(socket) for socket in sockets)
    if len(names) != len(sockets):
        raise TypeError(f"{cls.__name__}: {len(names)} output names for {len(sockets)} outputs")
    return tuple(Output(name, str(socket)) for name, socket in zip(names, sockets, strict=True))
