"""Selects one of two values, and computes picture sizes from proportions."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from katz_graph.node import Node, Widget
from katz_graph.node.wires import Anything

PROPORTIONS = {
    "1:1 (Square)": (1, 1),
    "2:3 (Portrait Photo)": (2, 3),
    "3:2 (Photo)": (3, 2),
    "3:4 (Portrait Standard)": (3, 4),
    "4:3 (Standard)": (4, 3),
    "9:16 (Portrait Widescreen)": (9, 16),
    "16:9 (Widescreen)": (16, 9),
    "21:9 (Ultrawide)": (21, 9),
}


class ComfySwitchNode(
    Node, category="utils/logic", title="Switch on Boolean", lazy=("on_false", "on_true")
):
    """Outputs one of two inputs and evaluates only that one. If it is missing, outputs nothing."""

    switch: bool = False

    def needs(self, **available: object) -> tuple[str, ...]:
        return ("on_true",) if self.switch else ("on_false",)

    def run(self, on_false: Anything = None, on_true: Anything = None) -> Anything:
        return on_true if self.switch else on_false


class ResolutionSelector(Node, category="utils", names=("width", "height")):
    """Computes width and height from proportions and a number of megapixels (of 1024² pixels),
    rounded to multiples of `multiple`.
    """

    aspect_ratio: Literal[tuple(PROPORTIONS)] = "1:1 (Square)"  # type: ignore[valid-type]
    megapixels: Annotated[float, Field(ge=0.1, le=16.0), Widget(step=0.1)] = 1.0
    multiple: Annotated[int, Field(ge=8, le=128), Widget(step=4)] = 8

    def run(self) -> tuple[int, int]:
        width, height = PROPORTIONS[self.aspect_ratio]
        unit = math.sqrt(self.megapixels * 1024**2 / (width * height)) / self.multiple
        return (
            max(round(width * unit), 1) * self.multiple,
            max(round(height * unit), 1) * self.multiple,
        )
