"""Assigns each value of a UI node to its widget. The file contains positions; names come from the
file or from the node type's signature.

Helper widgets shift the positions: a seed is followed by the value of its control widget, and a
node with uploads ends with one for the button.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

from katz_graph.formats.front_end.added_widgets import with_added_widgets
from katz_graph.formats.signature import AUTO_REFRESH, FILTER, Signature, WidgetSlot, chosen
from katz_graph.formats.ui_document import UiNode

CONTROLS = ("fixed", "increment", "decrement", "randomize", "increment-wrap")
HELPERS = ("control_after_generate", FILTER.name, AUTO_REFRESH.name)
UPLOAD_NAMES = ("upload", "audioUI")
BUTTON = "image"
UPLOAD_VALUES = (BUTTON, "", None)  # values of upload buttons and players
UNNAMED = "widget_"  # followed by the position in the file, for a value without a known name


def widget_values(node: UiNode, signature: Signature | None) -> dict[str, Any]:
    """Returns the values of a node's widgets by name. If the list and the names in the file differ,
    the list wins, because editors load the list.

    Widgets without a value in the file were added to the type later, and get their default, as in
    an editor. If the file names values, unnamed default values in the list are not part of the
    graph.
    """
    slots = with_added_widgets(node.type, signature, node.values)
    if slots is not None:
        signature = replace(signature or Signature((), (), ()), widgets=tuple(slots))
    if isinstance(node.values, Mapping):
        return _completed(_without_helpers(node.values, signature), signature)
    if node.named and len(node.named) == len(node.values):
        return _completed(
            _without_helpers(dict(zip(node.named, node.values, strict=True)), signature), signature
        )
    if node.named and not node.values:
        return _completed(_without_helpers(node.named, signature), signature)
    if signature is not None:
        return _by_signature(node, signature)
    return _by_inputs(node) if node.named is None else _without_helpers(node.named, None)


def is_unnamed(name: str) -> bool:
    return name.startswith(UNNAMED) and name[len(UNNAMED) :].isdecimal()


def aligned(
    slots: Sequence[WidgetSlot], values: Sequence[Any]
) -> tuple[list[tuple[WidgetSlot, int]], int]:
    """Pairs each slot with the position of its value, skipping helper widgets. Also returns the
    position after the last value used.
    """
    pending = deque(slots)
    pairs: list[tuple[WidgetSlot, int]] = []
    position = 0
    while pending and position < len(values):
        slot, value = pending.popleft(), values[position]
        pairs.append((slot, position))
        position += 1
        for follower in slot.followers:
            if _follows(follower, values[position:], pending):
                pairs += [(follower, position)] if follower.sent else []
                position += 1
        if isinstance(value, str) and value in slot.options:
            pending.extendleft(reversed(slot.options[value]))
        if position < len(values) and _is_controlled(slot, values[position:], pending):
            position += 1
            if slot.control and slot.socket == "COMBO":
                position += _follows(FILTER, values[position:], pending)
    return pairs, position


def _follows(follower: WidgetSlot, rest: Sequence[Any], pending: Sequence[WidgetSlot]) -> bool:
    """Returns whether the next value belongs to a widget that front ends insert. Files of earlier
    front ends may lack it.
    """
    if not rest or type(rest[0]) is not type(follower.default):
        return False
    if follower.sent:
        return bool(rest[0] == follower.default)
    return not pending or pending[0].socket != follower.socket or len(rest) > len(pending)


def _is_controlled(slot: WidgetSlot, rest: Sequence[Any], pending: Collection[WidgetSlot]) -> bool:
    """Returns whether the next value belongs to the slot's control widget. If the type declares a
    control widget, any value is accepted if exactly the values of the other widgets follow it.
    """
    if _is_control(rest[0]):
        return slot.control or (slot.socket == "INT" and len(rest) > len(pending))
    others = sum(1 + other.control for other in pending)
    return slot.control and len(rest) == 1 + others


def positions(slots: Sequence[WidgetSlot], values: Sequence[Any]) -> list[WidgetSlot | None]:
    """Returns each value's widget; a helper widget's value gets the widget before it."""
    pairs, end = aligned(slots, values)
    places = [position for _, position in pairs] + [end]
    owners: list[WidgetSlot | None] = []
    for (slot, position), following in zip(pairs, places[1:], strict=True):
        owners += [slot] * (following - position)
    return [*owners, *([None] * (len(values) - end))]


def _by_signature(node: UiNode, signature: Signature) -> dict[str, Any]:
    values = _without_button(list(node.values), signature.widgets)
    placed, position = aligned(signature.widgets, values)
    pairs = [(slot, _shown(slot, values[place])) for slot, place in placed]
    stated = node.named or {}
    named = {
        slot.name: value
        for slot, value in pairs
        if node.named is None or slot.name in stated or value != slot.default
    }
    slots = {slot.name for slot, _ in pairs}
    named |= {
        name: value
        for name, value in stated.items()
        if name not in slots and not _is_helper(name, value)
    }
    uploads = any(slot.upload for slot, _ in pairs)
    left = [
        (number, value)
        for number, value in enumerate(values[position:], position)
        if not (_is_control(value) or (uploads and _is_upload(value)))
    ]
    if len(left) > len(named.keys() - slots):
        named |= {f"{UNNAMED}{number}": value for number, value in left}
    return _completed(named, signature, slots)


def _shown(slot: WidgetSlot, value: Any) -> Any:
    """Returns the displayed value of a widget: an empty choice shows its default."""
    return copy(slot.default) if value is None and slot.socket == "COMBO" else value


def _without_button(values: list[Any], widgets: Sequence[WidgetSlot]) -> list[Any]:
    """Removes the upload button's value at the end if a newer widget now has its position."""
    place = sum(not _is_control(value) for value in values) - 1
    if values[-1:] != [BUTTON] or not any(slot.upload for slot in widgets) or place >= len(widgets):
        return values
    return values if widgets[place].upload or widgets[place].socket == "STRING" else values[:-1]


def _completed(
    values: Mapping[str, Any], signature: Signature | None, known: Collection[str] = ()
) -> dict[str, Any]:
    """Adds the defaults of the widgets that are neither among the values nor in `known`."""
    slots = () if signature is None else chosen(signature.widgets, values)
    return {
        slot.name: copy(slot.default)
        for slot in slots
        if slot.name not in known and slot.default is not None
    } | dict(values)


def _by_inputs(node: UiNode) -> dict[str, Any]:
    """Names the values of an unknown type after the node's inputs, which include all widgets in
    files of newer editors. If the counts differ, the values stay unnamed.
    """
    names = [port.name for port in node.inputs if port.widget]
    values = list(node.values)
    numbers = values[:1] + [
        value
        for before, value in pairwise(values)
        if not (_is_control(value) and _is_number(before))
    ]
    for candidate in (values, numbers):
        if len(candidate) == len(names):
            return dict(zip(names, candidate, strict=True))
    return {f"{UNNAMED}{number}": value for number, value in enumerate(values)}


def _without_helpers(values: Mapping[str, Any], signature: Signature | None) -> dict[str, Any]:
    declared = {slot.name for slot in signature.widgets} if signature else set()
    return {
        name: value
        for name, value in values.items()
        if name in declared or not _is_helper(name, value)
    }


def _is_helper(name: str, value: Any) -> bool:
    """Returns whether a value belongs to a helper widget. A second widget of one name is called
    `name#1`; the name of a control widget may equal its value.
    """
    plain = name.partition("#")[0]
    return (
        (plain in HELPERS)
        or (plain in CONTROLS and value == plain)
        or (plain in UPLOAD_NAMES and _is_upload(value))
    )


def _is_upload(value: Any) -> bool:
    return value is None or (isinstance(value, str) and value in UPLOAD_VALUES)


def _is_control(value: Any) -> bool:
    return isinstance(value, str) and value in CONTROLS


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
