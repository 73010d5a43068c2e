"""Describes nodes. A node is a class: its fields are knobs, the arguments of its `run` are wires,
and its return type gives the outputs.

Everything else works with the description, `NodeType` (validation, graph run, editor, help).
`Node.describe()` makes it from a class; adapters make it from ComfyUI's V1 and V3 nodes. Importing
this never imports torch.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from katz_graph.context import Context
from katz_graph.errors import InputError, RunError
from katz_graph.graph import Expansion, Link
from katz_graph.ir.region import SLOTS
from katz_graph.wires import Socket

KNOB_SOCKETS: Mapping[type, str] = {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}
ANY = "*"
INSTANCE = "__instance__"
FILLED_IN = frozenset(
    (
        *("UNIQUE_ID", "PROMPT", "DYNPROMPT", "EXTRA_PNGINFO"),
        # keys to other services: None here
        *("AUTH_TOKEN_COMFY_ORG", "API_KEY_COMFY_ORG", "COMFY_USAGE_SOURCE"),
    )
)
"""Values that a graph run fills in for hidden arguments."""
WRAPPED = re.compile(r"(?<=\S)\n(?=\S)")  # a line break inside a paragraph
T = TypeVar("T")
VARIADIC = SLOTS  # a `*name` argument of `run` is the wires name_1 to name_8, absent ones None


@dataclass(frozen=True, slots=True)
class FileChoice:
    """A knob that chooses from the files of one model folder (`checkpoints`, `loras`, `controlnet`,
    `vae`, `input`).
    """

    folder: str


@dataclass(frozen=True, slots=True)
class Widget:
    """Tells the editor how to show a knob; it changes nothing in what is accepted.

    `round`: to what an editor rounds a number, where that is not its step. `dynamic_prompts`: an
    editor chooses one of `{a|b}` each time that it sends the text.
    """

    step: float | None = None
    round: float | None = None
    multiline: bool = False
    dynamic_prompts: bool = False
    control_after_generate: bool = False
    upload: bool = False
    colour: bool = False


@dataclass(frozen=True, slots=True)
class ShownFor:
    """Has an input belong to choices of a knob: editors show it while one of them is chosen, and
    graphs call it `knob.name`, as ComfyUI's dynamic choices do. It has a default or is optional.
    """

    knob: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grows:
    """Has an argument of `run` be a group of wires that grows: `run` gets a mapping, from the names
    of those that are linked. The first `least` have to be. `prefix`: what stands before numbers
    from 0 in all names.
    """

    names: tuple[str, ...]
    least: int = 1
    prefix: str | None = None

    @classmethod
    def numbered(cls, prefix: str, most: int, least: int = 1) -> Grows:
        """Names them by their numbers."""
        return cls(tuple(f"{prefix}{number}" for number in range(most)), least, prefix)


@dataclass(frozen=True, slots=True)
class Growing:
    """Has an input be one of a group of equal wires: editors show those that are linked and one
    more, and graphs call it `group.name`, as ComfyUI's Autogrow does. `prefix` stands before
    numbers from 0 in their names; None where each has a name of its own. The first `least` have to
    be linked, unless the wire is optional.
    """

    group: str
    prefix: str | None
    least: int


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a node type: a knob (a literal, or a link that delivers one) or a wire (a link
    only, unless it has a `check`).

    `check` takes a literal, or what a link delivers to a knob, and returns the value; it raises
    ValueError. `refresh` returns the choices as they are now, where they are files. `raw`: `run`
    gets the link itself as `[node, output]`. `shown_for`: the choices of a knob that it belongs to;
    `grows`: the group that it is one of. `options` are what a pack wrote of the input, for
    editors.
    """

    name: str
    socket: str
    required: bool
    knob: bool
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] | None = None
    folder: str | None = None
    lazy: bool = False
    help: str = ""
    widget: Widget = Widget()
    check: Callable[[Any], Any] | None = None
    refresh: Callable[[], tuple[Any, ...]] | None = None
    raw: bool = False
    shown_for: ShownFor | None = None
    grows: Growing | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_name(self) -> str:
        """Returns the name of the field or argument: without the group that the input is one of, or
        the knob that it belongs to.
        """
        within = self.grows.group if self.grows else self.shown_for.knob if self.shown_for else ""
        return self.name.removeprefix(f"{within}.") if within else self.name


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    socket: str


@dataclass(frozen=True, slots=True)
class NodeType:
    """Describes one type of node completely.

    `run(context, inputs)` returns one value per output, or an `Expansion`, or either `WithUi`.
    `needs(inputs)` names the lazy inputs that are wanted next; lazy inputs that are not evaluated
    are None. `fingerprint(context, inputs)` returns what besides the inputs decides the result (a
    file's identity); None when nothing does. `stage` marks a node that may stand inside a step
    region and names the model function, or region role, that executes it. Each of the functions may
    be asynchronous.

    The rest is for ComfyUI's nodes only: a `run` that returns an awaitable overlaps with others;
    with `takes_lists` every input is the whole list of what came, otherwise a node is run once per
    element; an output marked in `gives_lists` is a list of values. `hidden` are arguments that the
    graph run fills in (argument -> one of FILLED_IN). `unlisted` are inputs that editors do not
    show (as a pack wrote them): what a graph gives for one reaches `run` as it is, and otherwise it
    is absent. `undeclared`: which inputs that are not declared at all reach `run`: links only, or
    all. `check(literals, link sockets)` returns further problems before the run as (input,
    message); the inputs in `unchecked` are not held to bounds and choices, and with
    `links_unchecked` `check` alone decides what may be linked. `instance` makes the object that
    stays between runs of one node of a graph; it reaches `run` as the input of the name INSTANCE.
    `per_node`: two equal nodes do not share a result. `fingerprint_linked`: whether the fingerprint
    needs the values of linked knobs, else it does without them. `about` is what else a node says of
    itself, for editors. `brings`: for a
    choice (knob -> value), the inputs as it declares them, where values of it declare inputs of
    one name differently; in `inputs` is what takes all of that.
    """

    name: str
    display_name: str
    category: str
    description: str
    inputs: Mapping[str, Input]
    outputs: tuple[Output, ...]
    is_output: bool
    run: Callable[[Context, Mapping[str, Any]], tuple[Any, ...] | Any]
    needs: Callable[[Mapping[str, Any]], tuple[str, ...]] | None = None
    fingerprint: Callable[[Context, Mapping[str, Any]], Any] | None = None
    stage: str | None = None
    pack: str = ""
    takes_lists: bool = False
    gives_lists: tuple[bool, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)
    unlisted: Mapping[str, Any] = field(default_factory=dict)
    undeclared: Literal["none", "links", "all"] = "none"
    check: Callable[[Mapping[str, Any], Mapping[str, str]], Iterable[tuple[str, str]]] | None = None
    unchecked: frozenset[str] = frozenset()
    instance: Callable[[], Any] | None = None
    per_node: bool = False
    links_unchecked: bool = False
    fingerprint_linked: bool = True
    about: Mapping[str, Any] = field(default_factory=dict)
    brings: Mapping[str, Mapping[Any, tuple[Input, ...]]] = field(default_factory=dict)

    def brought_by(self, knob: str, choice: Any = None) -> list[Input]:
        """Lists the inputs that belong to choices of a knob, or to one of them."""
        if knob in self.brings:
            of = self.brings[knob]
            return [*of.get(choice, ())] if choice is not None else [*chain(*of.values())]
        return [
            port
            for port in self.inputs.values()
            if port.shown_for is not None
            and port.shown_for.knob == knob
            and (choice is None or choice in port.shown_for.choices)
        ]

    def takes(self, name: str, value: Any) -> bool:
        """Tells whether an input that a graph gives, literal or link, reaches `run`."""
        declared = name in self.inputs or name in self.unlisted
        return (
            declared
            or self.undeclared == "all"
            or (self.undeclared == "links" and isinstance(value, Link))
        )


@dataclass(frozen=True, slots=True)
class WithUi:
    """A result of `run` with something for editors and clients, too: lists by kind, such as
    `images` or `text`.
    """

    result: Any
    ui: Mapping[str, Sequence[Any]]


class Node(BaseModel):
    """Base class of native nodes. Fields are knobs; arguments of `run` are wires (`*name` stands
    for name_1 to name_8).

    `context: Context` in `run` gives the running graph's services.

    Class arguments: `title` for people; `category`; `output=True` for a node that is run for its
    effect; `names=(...)` for the names of outputs; `lazy=(...)` for wires that `needs` asks for one
    by one; `stage="..."` for a node of the denoising loop; `takes_lists=True` for a node whose
    wires deliver the whole list of what came (its knobs are the first of theirs);
    `gives_lists=(...)` marks outputs that are lists.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    node_category: ClassVar[str] = ""
    node_is_output: ClassVar[bool] = False
    node_output_names: ClassVar[tuple[str, ...]] = ()
    node_lazy: ClassVar[tuple[str, ...]] = ()
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
        cls.node_stage = stage
        cls.node_takes_lists = takes_lists
        cls.node_gives_lists = gives_lists

    @classmethod
    def describe(cls) -> NodeType:
        """Describes this class. TypeError when a field or argument has a type that no socket stands
        for.
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
        # names in graphs -> names of fields and arguments, where they differ
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
            for name, port in inputs.items():  # in this order, whatever a graph's
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
                # packs may give None where they declare a value
                if values.get(name, given.get(name)) is None:
                    raise RunError(
                        f"input {name}: the node that it reads gave nothing, expected "
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
            run=run_async
            if inspect.iscoroutinefunction(run)
            else lambda context, values: outputs_of(call(context, values)),
            needs=None
            if needs is None
            else lambda values: needs(
                build(values), **{n: v for n, v in renamed(values).items() if n in wires}
            ),
            fingerprint=None
            if fingerprint is None
            else lambda context, values: fingerprint(build(values), context),
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
            f"{cls.__name__}.run: argument {name!r} has no type; give it one of katz_graph.wires, "
            "such as Image"
        )
    if socket is None:
        raise TypeError(
            f"{cls.__name__}.run: argument {name!r} has type {parameter.annotation!r}, which no "
            "socket stands for"
        )
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return [Input(numbered, socket, required=False, knob=False) for numbered in _numbered(name)]
    grows, shown_for = _note(parameter.annotation, Grows), _note(parameter.annotation, ShownFor)
    if grows is not None:
        if name in cls.node_lazy or shown_for or parameter.default is not inspect.Parameter.empty:
            raise TypeError(
                f"{cls.__name__}.run: {name!r} is a group of wires, which has no default, is not "
                "lazy and belongs to no choice"
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
    """Returns the check of a wire of several types that takes literals, too: of those of its types
    that have widgets.
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
    """Returns what an annotation says of this kind."""
    annotation = _unwrap_optional(annotation)
    notes = annotation.__metadata__ if get_origin(annotation) is Annotated else ()
    return next((note for note in notes if isinstance(note, kind)), None)


def _check_choices(cls: type[Node], inputs: Mapping[str, Input]) -> None:
    """Raises TypeError where an input belongs to what is no choice, or has to be given."""
    for port in inputs.values():
        if (belongs := port.shown_for) is None:
            continue
        chooser = inputs.get(belongs.knob)
        choices = () if chooser is None else chooser.choices or ()
        if not set(belongs.choices) <= set(choices):
            raise TypeError(
                f"{cls.__name__}: {port.own_name!r} is shown for {belongs.choices!r} of "
                f"{belongs.knob!r}, which has the choices {choices!r}"
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
            f"{cls.__name__}: field {name!r} has type {info.annotation!r}, which no "
            "socket stands for"
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
    )


def _outputs(cls: type[Node], annotation: Any) -> tuple[Output, ...]:
    if annotation is None or annotation is inspect.Signature.empty:
        return ()
    members = get_args(annotation) if get_origin(annotation) is tuple else (annotation,)
    sockets = [_socket(member) for member in members]
    if None in sockets:
        raise TypeError(
            f"{cls.__name__}.run: the return type {annotation!r} has a part that no "
            "socket stands for"
        )
    names = cls.node_output_names or tuple(str(socket) for socket in sockets)
    if len(names) != len(sockets):
        raise TypeError(f"{cls.__name__}: {len(names)} output names for {len(sockets)} outputs")
    return tuple(Output(name, str(socket)) for name, socket in zip(names, sockets, strict=True))
