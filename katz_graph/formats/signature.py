"""Describes node types for reading UI files, which leave out the order of a type's widgets, its
wires and its outputs.

Made from the node types that are loaded here, or from a foreign server's description
(`object_info`). Must not know files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any

from katz_graph.core.graph import Graph, NodeCall
from katz_graph.core.messages import one_line, shorten
from katz_graph.node.types import Input, NodeType

STARTS: Mapping[str, Any] = {
    "INT": 0,
    "FLOAT": 0.0,
    "STRING": "",
    "BOOLEAN": False,
    "COLOR": "#000000",
    "MARKDOWN": "",
    "TEXTAREA": "",
    "IMAGECOMPARE": ["", ""],  # the addresses of two pictures, which come with a run
}
"""What widgets begin with whose type names no default."""

# the sockets of a choice that brings further inputs, and of a group that grows
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
GROWING = "COMFY_AUTOGROW_V3"
DRAWN = frozenset(
    (
        *("MARKDOWN", "TEXTAREA", "CURVE", "RANGE", "COLORS", "PAINTER", "COMPOSITOR"),
        *("BOUNDING_BOX", "BOUNDING_BOXES", "IMAGECOMPARE", "CHART", "GALLERIA"),
        *("VIDEO_EDIT", "RESOLUTION_PREVIEW", "WEBCAM", "AUDIO_RECORD"),
        *("LOAD_3D", "LOAD_3D_ANIMATION", "PREVIEW_3D", "PREVIEW_3D_ANIMATION"),
    )
)
"""The sockets that front ends alone know a widget for. It has a place among a node's values."""
WIDGETS = frozenset(("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR", DYNAMIC)) | DRAWN
# whole numbers of these names have a control widget even where the type does not say so
SEEDS = ("seed", "noise_seed")


@dataclass(frozen=True, slots=True)
class Port:
    """A wire or an output. `group`: of wires of which only those that are linked are drawn, and
    one more.
    """

    name: str
    socket: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class WidgetSlot:
    """One widget. `default`: its first value; None where that is a file of the reader's.

    `control`: a widget that says how the value changes after a run follows; `upload`: one for
    sending files is at the end. `dynamic_prompts`: of `{a|b}` in its text one part is sent.
    `options`: the widgets that follow when this one has that value. `followers`: those that front
    ends put right behind it; if not `sent`, a widget is for the editor only.
    """

    name: str
    socket: str
    default: Any = None
    control: bool = False
    upload: bool = False
    multiline: bool = False
    dynamic_prompts: bool = False
    options: Mapping[str, tuple[WidgetSlot, ...]] = field(default_factory=dict)
    followers: tuple[WidgetSlot, ...] = ()
    sent: bool = True


AUTO_REFRESH = WidgetSlot("Auto-refresh after generation", "BOOLEAN", False, sent=False)
REFRESH = WidgetSlot("refresh", "STRING", "refresh")
FILTER = WidgetSlot("control_filter_list", "STRING", "", sent=False)
"""The widget behind the control widget of a choice."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Wires, widgets and outputs of a node type, in their order; `title`: the editor's name for a
    node that has no title of its own.
    """

    wires: tuple[Port, ...]
    widgets: tuple[WidgetSlot, ...]
    outputs: tuple[Port, ...]
    title: str = ""


def chosen(widgets: Iterable[WidgetSlot], values: Mapping[str, Any]) -> Iterator[WidgetSlot]:
    """Yields the widgets that a node with these values shows: those of the type, and behind each
    those that its value brings.
    """
    pending = deque(widgets)
    while pending:
        slot = pending.popleft()
        yield slot
        value = values.get(slot.name, slot.default)
        if isinstance(value, str):
            pending.extendleft(reversed(slot.options.get(value, ())))


def all_widgets(widgets: Iterable[WidgetSlot]) -> Iterator[WidgetSlot]:
    """Yields the widgets of a type, and those that any value of its choices brings."""
    pending = deque(widgets)
    while pending:
        slot = pending.popleft()
        yield slot
        pending.extend(chain.from_iterable(slot.options.values()))


def start(drawn_as: str, default: Any, choices: Sequence[Any] = (), several: bool = False) -> Any:
    """Returns the first value of a widget of the type `drawn_as`, in an editor."""
    if default is not None:
        return default
    if several:
        return []
    return choices[0] if choices else STARTS.get(drawn_as)


def followers(options: Mapping[str, Any]) -> tuple[WidgetSlot, ...]:
    """Returns the widgets that front ends put behind one whose choices they fetch: a switch, and a
    button if the type asks for one.
    """
    remote = options.get("remote")
    if not isinstance(remote, Mapping):
        return ()
    return (AUTO_REFRESH, REFRESH) if remote.get("refresh_button") else (AUTO_REFRESH,)


Signatures = Callable[[str], Signature | None]
"""The signature of a node type by its name; None when the type is not known."""


def signatures(
    types: Mapping[str, NodeType], foreign: Mapping[str, Signature] | None = None
) -> Signatures:
    """Looks up signatures: a foreign server's first (the file is from there), else loaded
    types'.
    """

    @cache
    def look_up(name: str) -> Signature | None:
        if foreign and name in foreign:
            return foreign[name]
        return _of_type(types[name]) if name in types else None

    return look_up


def is_seed(name: str, socket: str) -> bool:
    return socket == "INT" and name in SEEDS


def titled(graph: Graph, known: Signatures) -> Graph:
    """Puts a title on every node, as the editor exports it: users' scripts look nodes up by it."""

    def with_title(call: NodeCall) -> NodeCall:
        kind = known(call.type)
        return replace(
            call, title=call.title or (kind.title if kind is not None else "") or call.type
        )

    return Graph({identifier: with_title(call) for identifier, call in graph.nodes.items()})


def unknown_types(graph: Graph, known: Signatures) -> str:
    """Writes one line that names every unknown node type of a graph; empty when all are known."""
    unknown = dict.fromkeys(call.type for call in graph.nodes.values() if known(call.type) is None)
    if not unknown:
        return ""
    names = ", ".join(one_line(shorten(name)) for name in unknown)
    return f"node types that are not known here: {names}; their names of inputs come from the file"


def _of_type(kind: NodeType) -> Signature:
    return Signature(
        wires=tuple(
            Port(port.name, port.socket, port.grows.group if port.grows else "")
            for port in kind.inputs.values()
            if not _has_widget(port)
        ),
        widgets=tuple(
            _widget(port, kind)
            for port in kind.inputs.values()
            if _has_widget(port) and port.shown_for is None
        ),
        outputs=tuple(Port(output.name, output.socket) for output in kind.outputs),
        title=kind.display_name,
    )


def _has_widget(port: Input) -> bool:
    return port.knob or (port.socket in DRAWN and not port.options.get("forceInput"))


def _widget(knob: Input, kind: NodeType) -> WidgetSlot:
    default = start(
        str(knob.options.get("widgetType") or knob.socket), knob.default, knob.choices or ()
    )
    control = knob.widget.control_after_generate or is_seed(knob.name, knob.socket)
    brings = kind.brought_by(knob.name)
    options = {
        choice: tuple(
            _widget(one, kind) for one in kind.brought_by(knob.name, choice) if _has_widget(one)
        )
        for choice in (knob.choices or () if brings else ())
    }
    return WidgetSlot(
        knob.name,
        knob.socket,
        default,
        control=control,
        upload=knob.widget.upload,
        multiline=knob.widget.multiline,
        dynamic_prompts=knob.widget.dynamic_prompts or bool(knob.options.get("dynamicPrompts")),
        options=options,
        followers=followers(knob.options),
    )
