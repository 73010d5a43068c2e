"""Outputs plain values, which several inputs can share, and shows any value as text."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import Field

from katz_graph.node import Node, Widget
from katz_graph.node.knobs import Text
from katz_graph.node.ui_results import with_ui
from katz_graph.node.wires import Anything

MAX_INTEGER = 2**63 - 1


class PrimitiveInt(Node, category="utils/primitive", title="Int"):
    """Outputs a whole number."""

    value: Annotated[
        int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER), Widget(control_after_generate=True)
    ] = 0

    def run(self) -> int:
        return self.value


class PrimitiveFloat(Node, category="utils/primitive", title="Float"):
    """Outputs a number."""

    value: Annotated[float, Field(ge=-MAX_INTEGER, le=MAX_INTEGER), Widget(step=0.1)] = 0.0

    def run(self) -> float:
        return self.value


class PrimitiveBoolean(Node, category="utils/primitive", title="Boolean"):
    """Outputs true or false."""

    value: bool = False

    def run(self) -> bool:
        return self.value


class PrimitiveString(Node, category="utils/primitive", title="String"):
    """Outputs a line of text."""

    value: str = ""

    def run(self) -> str:
        return self.value


class PrimitiveStringMultiline(Node, category="utils/primitive", title="String (Multiline)"):
    """Outputs text of several lines."""

    value: Text = ""

    def run(self) -> str:
        return self.value


class PreviewAny(Node, category="utils", output=True, title="Preview as Text"):
    """Shows any value as text, and outputs the text."""

    def run(self, source: Anything) -> str:
        text = _as_text(source)
        return with_ui(text, text=(text,))


def _as_text(value: object) -> str:
    if isinstance(value, (str, int, float)) or value is None:
        return str(value)
    try:
        return json.dumps(value, indent=4, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)
