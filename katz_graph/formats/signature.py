"""Describes node types for reading UI files, which omit the order of a type's widgets, other inputs
and outputs.

Signatures are built from the loaded node types, or from another server's description
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
    "IMAGECOMPARE": ["", ""],  # URLs of two pictures, from a run
}
"""Initial values of widgets whose type declares no default."""

# sockets of a choice that adds inputs, and of a growing group
DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
GROWING = "COMFY_AUTOGROW_V3"
DRAWN_WIDGETS = frozenset(
    (
        *("MARKDOWN", "TEXTAREA", "CURVE", "RANGE", "COLORS", "PAINTER", "COMPOSITOR"),
        *("BOUNDING_BOX", "BOUNDING_BOXES", "IMAGECOMPARE", "CHART", "GALLERIA"),
        *("VIDEO_EDIT", "RESOLUTION_PREVIEW", "WEBCAM", "AUDIO_RECORD"),
        *("LOAD_3D", "LOAD_3D_ANIMATION", "PREVIEW_3D", "PREVIEW_3D_ANIMATION"),
    )
)
"""Sockets that have a widget only in front ends. Their values are among a node's values."""
WIDGETS = (
    frozenset(("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR", DYNAMIC)) | DRAWN_WIDGETS
)
# integers with these names have a control widget even if the type does not declare one
SEEDS = ("seed", "noise_seed")


@dataclass(frozen=True, slots=True)
class Port:
    """An input without a widget, or an output. `group`: the input's growing group, shown as the
    linked inputs and a free one.
    """

    name: str
    socket: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class WidgetSlot:
    name: str
    socket: str
    default: Any = None
    """Initial value; None for a choice of files."""
    control: bool = False
    """A widget follows that selects how the value changes after a run."""
    upload: bool = False
    """The node's last widget is an upload button."""
    multiline: bool = False
    dynamic_prompts: bool = False
    """One alternative of `{a|b}` in the text is sent."""
    options: Mapping[str, tuple[WidgetSlot, ...]] = field(default_factory=dict)
    """Maps values of this widget to the widgets that then follow it."""
    followers: tuple[WidgetSlot, ...] = ()
    """Widgets that front ends insert directly after this one."""
    sent: bool = True
    """False for a widget of the editor only."""


AUTO_REFRESH = WidgetSlot("Auto-refresh after generation", "BOOLEAN", False, sent=False)
REFRESH = WidgetSlot("refresh", "STRING", "refresh")
FILTER = WidgetSlot("control_filter_list", "STRING", "", sent=False)
"""The widget after the control widget of a choice."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A node type's widgets, other inputs (`wires`) and outputs, in order. `title`: the editor's
    default title.
    """

    wires: tuple[Port, ...]
    widgets: tuple[WidgetSlot, ...]
    outputs: tuple[Port, ...]
    title: str = ""


def chosen(widgets: Iterable[WidgetSlot], values: Mapping[str, Any]) -> Iterator[WidgetSlot]:
    """Yields the widgets that a node with these values shows: those of the type, each followed by
    the widgets that its value adds.
    """
    pending = deque(widgets)
    while pending:
        slot = pending.popleft()
        yield slot
        value = values.get(slot.name, slot.default)
        if isinstance(value, str):
            pending.extendleft(reversed(slot.options.get(value, ())))


def all_widgets(widgets: Iterable[WidgetSlot]) -> Iterator[WidgetSlot]:
    """Yields the widgets of a type, including those that any value of its choices adds."""
    pending = deque(widgets)
    while pending:
        slot = pending.popleft()
        yield slot
        pending.extend(chain.from_iterable(slot.options.values()))


def start(drawn_as: str, default: Any, choices: Sequence[Any] = (), several: bool = False) -> Any:
    """Returns the initial value of a widget of the type `drawn_as` in an editor."""
    if default is not None:
        return default
    if several:
        return []
    return choices[0] if choices else STARTS.get(drawn_as)


def followers(options: Mapping[str, Any]) -> tuple[WidgetSlot, ...]:
    """Returns the widgets that front ends insert after a choice with remote options: a switch, and
    a button if the type requests one.
    """
    remote = options.get("remote")
    if not isinstance(remote, Mapping):
        return ()
    return (AUTO_REFRESH, REFRESH) if remote.get("refresh_button") else (AUTO_REFRESH,)


Signatures = Callable[[str], Signature | None]
"""Returns the signature of a node type by name; None if the type is unknown."""


def signatures(
    types: Mapping[str, NodeType], foreign: Mapping[str, Signature] | None = None
) -> Signatures:
    """Returns a lookup of signatures. Those of a foreign server, the file's origin, take precedence
    over those of loaded types.
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
    """Sets a title on every node, like the editor's export, because scripts search by title."""

    def with_title(call: NodeCall) -> NodeCall:
        kind = known(call.type)
        return replace(
            call, title=call.title or (kind.title if kind is not None else "") or call.type
        )

    return Graph({identifier: with_title(call) for identifier, call in graph.nodes.items()})


def unknown_types(graph: Graph, known: Signatures) -> str:
    """Returns one line that lists every unknown node type of a graph; empty if all are known."""
    unknown = dict.fromkeys(call.type for call in graph.nodes.values() if known(call.type) is None)
    if not unknown:
        return ""
    names = ", ".join(one_line(shorten(name)) for name in unknown)
    return f"unknown node types: {names}; their input names come from the file"


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
    return port.knob or (port.socket in DRAWN_WIDGETS and not port.options.get("forceInput"))


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
