"""Converts schema inputs to inputs of node types, through their V1 declarations, and adds the
choice or group that each belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.comfy.v1.inputs import Declared
from katz_graph.comfy.v3.dynamic import Flat
from katz_graph.comfy.v3.inputs import Input, WidgetInput
from katz_graph.node import ShownFor
from katz_graph.node.types import Input as Port

# option names of V3 -> names in editors
RENAMED = {
    "display_mode": "display",
    "dynamic_prompts": "dynamicPrompts",
    "widget_type": "widgetType",
}
Brings = dict[str, dict[str, tuple[Port, ...]]]


def declared(port: Input) -> tuple[Any, dict[str, Any]]:
    """Returns the V1 declaration of an input: type and options."""
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
    if not choices and "remote" in options:  # only a client fetches them
        choices = None
    if widget is not None:  # an input of several types, shown as this widget
        options |= {"widgetType": widget.get_io_type()} | (
            {} if choices is None else {"options": choices}
        )
        choices = None
    return (port.get_io_type() if choices is None else choices), options


def belonging(
    inputs: Mapping[str, Port], unfolded: Sequence[Flat]
) -> tuple[dict[str, Port], Brings]:
    """Adds to each input the choice or group it belongs to, and makes a group's inputs adjacent.
    Also returns the inputs that each value of a choice adds.
    """
    exact: dict[str, list[Port]] = {}
    for one in unfolded:
        exact.setdefault(one.port.id, []).append(_exact(one))
    together: dict[str, list[str]] = {}
    for name in inputs:
        grows = exact[name][0].grows
        together.setdefault(grows.group if grows else name, []).append(name)
    made = {
        name: _merged(inputs[name], exact[name]) for names in together.values() for name in names
    }
    return made, _brings([port for ports in exact.values() for port in ports])


def _exact(one: Flat) -> Port:
    """Builds the input as one value of a choice declares it."""
    group = "optional" if one.port.optional else "required"
    (port,) = Declared(lambda: {group: {one.port.id: declared(one.port)}}).inputs().values()
    return replace(port, shown_for=one.shown_for, grows=one.grows)


def _merged(port: Port, exact: Sequence[Port]) -> Port:
    """Merges the declarations that several values of a choice have for one input into a declaration
    that accepts the values of all.
    """
    first, *others = exact
    made = replace(port, grows=first.grows)
    if first.shown_for is not None:
        shown = [key for one in exact if one.shown_for for key in one.shown_for.choices]
        shown_for = ShownFor(first.shown_for.knob, tuple(dict.fromkeys(shown)))
        made = replace(made, required=False, shown_for=shown_for)
    if all(_limits(one) == _limits(first) for one in others):
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


def _limits(port: Port) -> tuple[Any, ...]:
    return port.socket, port.knob, port.choices, port.minimum, port.maximum


def _brings(exact: Sequence[Port]) -> Brings:
    """Maps choices and their values to the inputs that they add, required ones first. If several
    values of an outer choice declare the same choice, the first declaration wins.
    """
    made: dict[str, dict[str, dict[str, Port]]] = {}
    for one in sorted(exact, key=lambda port: not port.required):
        for key in one.shown_for.choices if one.shown_for else ():
            assert one.shown_for is not None
            made.setdefault(one.shown_for.knob, {}).setdefault(key, {}).setdefault(one.name, one)
    return {
        knob: {key: tuple(ports.values()) for key, ports in values.items()}
        for knob, values in made.items()
    }
