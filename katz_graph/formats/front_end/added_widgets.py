"""Describes the widgets that front ends add to a node type. Servers do not describe these widgets,
but files contain their values, and front ends send them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katz_graph.formats.signature import Signature, WidgetSlot

CHOICE, INDEX, OPTION = "choice", "index", "option"
COMBO = "CustomCombo"


@dataclass(frozen=True, slots=True)
class AddedWidget:
    """A widget that follows the widget `after`. `fixed`: the constant value of a button."""

    after: str
    name: str
    fixed: str | None = None


ADDED_WIDGETS: Mapping[str, tuple[AddedWidget, ...]] = {
    "SaveGLB": (AddedWidget("filename_prefix", "image"),),
    "Preview3D": (AddedWidget("model_file", "image"),),
    "CameraAngle": (AddedWidget("zoom", "view"),),  # the preview's side
    "Load3D": (
        AddedWidget("model_file", "upload 3d model", "upload3dmodel"),
        AddedWidget("upload 3d model", "upload extra resources", "uploadExtraResources"),
        AddedWidget("upload extra resources", "clear", "clear"),
        AddedWidget("clear", "image"),
    ),
}


def with_added_widgets(
    node_type: str, signature: Signature | None, values: Sequence[Any] | Mapping[str, Any]
) -> Sequence[WidgetSlot] | None:
    """Returns the widgets of a node, including those that front ends add; None for an unknown type.
    Omits a button without a value in the file.
    """
    if isinstance(values, Mapping):
        values = list(values.values())
    if node_type == COMBO and (values or signature is None):
        return _combo(values)
    if signature is None:
        return None
    slots = list(signature.widgets)
    place = len(slots)
    for widget in ADDED_WIDGETS.get(node_type, ()):
        names = [slot.name for slot in slots]
        place = names.index(widget.after) + 1 if widget.after in names else place
        if widget.name in names or (widget.fixed is not None and widget.fixed not in values):
            continue
        slots.insert(place, WidgetSlot(widget.name, "STRING", widget.fixed or ""))
    return slots


def completed(node_type: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the inputs that a front end computes: the index of a choice among its options."""
    if node_type != COMBO or not isinstance(inputs.get(CHOICE), str):
        return dict(inputs)
    options = [value for name, value in inputs.items() if name.removeprefix(OPTION).isdecimal()]
    index = options.index(inputs[CHOICE]) if inputs[CHOICE] in options else -1
    return {**inputs, INDEX: index}


def _combo(values: Sequence[Any]) -> list[WidgetSlot]:
    """Returns the widgets of a choice with user-defined options: the choice, one per option, and an
    empty one.
    """
    index = [WidgetSlot(INDEX, "INT", 0)] if _has_index(values) else []
    options = len(values) - 1 - len(index)
    written = (WidgetSlot(f"{OPTION}{number + 1}", "STRING", "") for number in range(options))
    return [WidgetSlot(CHOICE, "STRING", ""), *index, *written]


def _has_index(values: Sequence[Any]) -> bool:
    return len(values) > 1 and isinstance(values[1], int) and not isinstance(values[1], bool)
