"""Limits conditionings to a part of the picture: an area, or a mask."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from katz_graph.knobs import Share, Strength, WholeCells
from katz_graph.node import Node, Widget
from katz_graph.nodes.conditioning import mapped
from katz_graph.recipe import Area, MaskUse, Picture
from katz_graph.wires import CELL, Conditioning, Mask

AreaSide = Annotated[int, Field(ge=64, le=16384), Widget(step=8)]


class ConditioningSetArea(Node, category="conditioning"):
    """Acts in a rectangle of the picture, in pixels; the model is shown only that."""

    width: AreaSide = 64
    height: AreaSide = 64
    x: WholeCells = 0
    y: WholeCells = 0
    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        area = Area(self.y // CELL, self.x // CELL, self.height // CELL, self.width // CELL)
        return mapped(conditioning, lambda entry: replace(entry, area=area, strength=self.strength))


class ConditioningSetAreaPercentage(Node, category="conditioning"):
    """Acts in a rectangle of the picture, in parts of its sides; the model is shown only that."""

    width: Share = 1.0
    height: Share = 1.0
    x: Share = 0.0
    y: Share = 0.0
    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        area = Area(self.y, self.x, self.height, self.width, relative=True)
        return mapped(conditioning, lambda entry: replace(entry, area=area, strength=self.strength))


class ConditioningSetAreaStrength(Node, category="conditioning"):
    """How much the conditioning counts against others."""

    strength: Strength = 1.0

    def run(self, conditioning: Conditioning) -> Conditioning:
        return mapped(conditioning, lambda entry: replace(entry, strength=self.strength))


class ConditioningSetMask(Node, category="conditioning"):
    """Acts where the mask is, as much as it is. With `mask bounds` the model is shown only the box
    around it.
    """

    strength: Strength = 1.0
    set_cond_area: Literal["default", "mask bounds"] = "default"

    def run(self, conditioning: Conditioning, mask: Mask) -> Conditioning:
        use = MaskUse(Picture.of(mask), self.strength, self.set_cond_area == "mask bounds")
        return mapped(conditioning, lambda entry: replace(entry, mask=use))
