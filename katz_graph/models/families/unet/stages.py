"""Declares the stages of UNets and of their ControlNets. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from katz_graph.models.counts import Counts, total
from katz_graph.models.family import config
from katz_graph.models.stages import Extent, Stage, uncounted
from katz_graph.planner.program import Work
from katz_graph.recipe import Component, ModelRecipe

if TYPE_CHECKING:
    from katz_graph.models.shapes import StageName

PARTS: tuple[StageName, ...] = ("unet_encoder", "unet_mid", "unet_decoder")
TEXT = {"text": "text_encoder", "kept": "keys_values"}
STEP = TEXT | {"added": "added_embedding"}
PICTURE = STEP | {"concatenated": "concatenated"}


def _work(name: StageName) -> Callable[[Mapping[str, Any], Extent, Counts], Work]:
    """Makes the count of a stage that runs a range of a network's blocks."""

    def count(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> Work:
        batch, _, height, width = extent.shape
        first, last = inputs.get("first_block", 0), inputs.get("last_block", -1)
        last = None if last == -1 else last
        return counts.work(config(_network(inputs)), name, batch, height, width, extent.tokens, first, last, extent.value_bytes)

    return count


def _whole(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> Work:
    return total([_work(part)(inputs, extent, counts) for part in PARTS])


def _network(inputs: Mapping[str, Any]) -> Component:
    model = inputs.get("model") or inputs["control_net"]
    return model.unet if isinstance(model, ModelRecipe) else model.control_net


def _part(name: StageName, **declared: Any) -> Stage:
    """Declares one of the three that make up a UNet."""
    return Stage(name, _work(name), costed=True, holds_weights=True, placeable=True, group="unet", **declared)


STAGES = (
    _part("unet_encoder", gives=("state",), hoists=PICTURE, label="UNet encoder", colour="#4c78a8"),
    _part("unet_mid", gives=("hidden",), hoists=TEXT, label="UNet mid", colour="#72b7b2"),
    _part("unet_decoder", gives=("hidden", "prediction"), last_block_gives=1, hoists=TEXT, label="UNet decoder", colour="#54a24b"),
    Stage(
        "unet_wrapped",
        _whole,
        costed=True,
        holds_weights=True,
        gives=("prediction",),
        hoists=PICTURE,
        stands_for=PARTS,
        group="unet",
        label="UNet wrapped",
        colour="#54a24b",
    ),
    Stage(
        "controlnet",
        _work("controlnet"),
        costed=True,
        holds_weights=True,
        hoists=STEP | {"reference": "controlnet_reference"},
        may_lag=True,
        placeable=True,
        label="ControlNet",
        colour="#f58518",
    ),
    Stage("controlnet_reference", _work("controlnet_reference"), holds_weights=True),
    Stage("keys_values", _work("keys_values"), reads_text=True),
    Stage("added_embedding", uncounted, reads_text=True),
    Stage("concatenated", uncounted),
)
