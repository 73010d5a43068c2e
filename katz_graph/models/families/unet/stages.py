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
    from katz_graph.models.shapes import Stage as Counted

ENCODER, MID, DECODER = "unet_encoder", "unet_mid", "unet_decoder"
TEXT = {"text": "text_encoder", "kept": "keys_values"}
STEP = TEXT | {"added": "added_embedding"}
PICTURE = STEP | {"concatenated": "concatenated"}


def _work(name: Counted) -> Callable[[Mapping[str, Any], Extent, Counts], Work]:
    """Makes the count of a stage that runs a range of a network's blocks."""

    def count(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> Work:
        batch, _, height, width = extent.shape
        first, last = inputs.get("first_block", 0), inputs.get("last_block", -1)
        last = None if last == -1 else last
        return counts.work(config(_network(inputs)), name, batch, height, width, extent.tokens, first, last, extent.value_bytes)

    return count


def _whole(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> Work:
    parts: tuple[Counted, ...] = ("unet_encoder", "unet_mid", "unet_decoder")
    return total([_work(part)(inputs, extent, counts) for part in parts])


def _network(inputs: Mapping[str, Any]) -> Component:
    model = inputs.get("model") or inputs["control_net"]
    return model.unet if isinstance(model, ModelRecipe) else model.control_net


STAGES = (
    Stage(
        ENCODER,
        _work("unet_encoder"),
        gives=("state",),
        costed=True,
        hoists=PICTURE,
        holds_weights=True,
        placeable=True,
        group="unet",
        label="UNet encoder",
        colour="#4c78a8",
    ),
    Stage(
        MID,
        _work("unet_mid"),
        gives=("hidden",),
        costed=True,
        hoists=TEXT,
        holds_weights=True,
        placeable=True,
        group="unet",
        label="UNet mid",
        colour="#72b7b2",
    ),
    Stage(
        DECODER,
        _work("unet_decoder"),
        gives=("hidden", "prediction"),
        last_block_gives=1,
        costed=True,
        hoists=TEXT,
        holds_weights=True,
        placeable=True,
        group="unet",
        label="UNet decoder",
        colour="#54a24b",
    ),
    Stage(
        "unet_wrapped",
        _whole,
        gives=("prediction",),
        costed=True,
        hoists=PICTURE,
        stands_for=(ENCODER, MID, DECODER),
        holds_weights=True,
        group="unet",
        label="UNet wrapped",
        colour="#54a24b",
    ),
    Stage(
        "controlnet",
        _work("controlnet"),
        costed=True,
        hoists=STEP | {"reference": "controlnet_reference"},
        holds_weights=True,
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
