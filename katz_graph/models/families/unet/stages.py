"""Declares the stages of UNets and of their ControlNets. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from katz_graph.core.recipe import Component, ModelRecipe
from katz_graph.ir.device import Work
from katz_graph.models.configuration import config
from katz_graph.models.costs.layers import LayeredWork
from katz_graph.models.costs.sums import total
from katz_graph.models.families.shared.stages import (
    channels_once,
    reference_once,
    text_once,
)
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.models.stages import (
    Blocks,
    CountLayers,
    Extent,
    Module,
    Sized,
    Stage,
    WorkCounts,
    uncounted,
)

COMPUTE, EXAMPLES = (
    f"katz_graph.models.families.unet.{module}" for module in ("compute", "examples")
)
PARTS = ("unet_encoder", "unet_mid", "unet_decoder")
TEXT = {"text": "text_encoder", "cached": "keys_values"}
STEP = TEXT | {"added": "added_embedding"}
PICTURE = STEP | {"concatenated": "concatenated"}


def _work(name: str) -> Callable[[Mapping[str, Any], Extent, WorkCounts], Work]:
    """Returns the work function of a stage that runs a range of a network's blocks."""

    def count(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
        sizes = _sizes(inputs, extent)
        return counts.work(config(_network(inputs)), name, sizes, extent.value_bytes)

    return count


def _sizes(inputs: Mapping[str, Any], extent: Extent) -> Sized:
    batch, _, height, width = extent.shape
    first, last = inputs.get("first_block", 0), inputs.get("last_block", -1)
    return Sized(batch, height, width, extent.tokens, first, None if last == -1 else last)


def _layers(name: str) -> CountLayers:
    """Returns the function that counts a stage's work by transformer layer."""

    def count(
        inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts, active: Mapping[int, int]
    ) -> LayeredWork:
        sizes = _sizes(inputs, extent)
        return counts.layers(config(_network(inputs)), name, sizes, active, extent.value_bytes)

    return count


def _whole(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
    return total([_work(part)(inputs, extent, counts) for part in PARTS])


def _network(inputs: Mapping[str, Any]) -> Component:
    model = inputs.get("model") or inputs["control_net"]
    return model.network if isinstance(model, ModelRecipe) else model.control_net


def _computed(compute: str, bind: str = "", module: Module = "model") -> dict[str, Any]:
    """Returns a stage's functions in `compute` and its module's input."""
    return {
        "compute": f"{COMPUTE}:{compute}",
        "bind": bind and f"{COMPUTE}:{bind}",
        "module": module,
    }


def _counted(name: str, compute: str, bind: str = "", module: Module = "model") -> dict[str, Any]:
    """Adds the example in `examples` and the work function to `_computed`."""
    return {
        "name": name,
        "count": _work(name),
        "example": f"{EXAMPLES}:{compute}",
        **_computed(compute, bind, module),
    }


def _part(name: str, compute: str, bind: str = "", **declared: Any) -> Stage:
    """Declares one of the three stages of a UNet."""
    return Stage(
        **_counted(name, compute, bind),
        count_layers=_layers(name),
        costed=True,
        holds_weights=True,
        placeable=True,
        group="unet",
        repeats=tuple(TEXT),
        **declared,
    )


STAGES = (
    _part(
        "unet_encoder",
        "encode",
        gives=("state",),
        hoists=PICTURE,
        label="UNet encoder",
        colour="#4c78a8",
    ),
    _part("unet_mid", "mid", gives=("hidden",), hoists=TEXT, label="UNet mid", colour="#72b7b2"),
    _part(
        "unet_decoder",
        "decode",
        "bind_decode",
        gives=("hidden", "prediction"),
        blocks=Blocks(lambda unet: unet_architecture(unet).up_blocks, last_gives=1),
        absorbs="residuals_",
        absorb=f"{COMPUTE}:absorb_residuals",
        hoists=TEXT,
        label="UNet decoder",
        colour="#54a24b",
    ),
    Stage(
        "unet_wrapped",
        _whole,
        **_computed("wrapped", "bind_wrapped"),
        recorded=False,
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
        **_counted("controlnet", "control", "bind_control", "control_net"),
        rows=("strength",),
        repeats=tuple(TEXT),
        costed=True,
        holds_weights=True,
        hoists=STEP | {"reference": "controlnet_reference"},
        stale_output=0,
        pooled=True,
        placeable=True,
        label="ControlNet",
        colour="#f58518",
    ),
    Stage(
        **_counted("controlnet_reference", "reference", "bind_reference", "control_net"),
        recipes=("image", "cells"),
        holds_weights=True,
        once=reference_once,
        replaces=("image",),
    ),
    Stage(**_counted("keys_values", "keys_values"), reads_text=True, once=text_once),
    Stage("added_embedding", uncounted, **_computed("added"), reads_text=True, once=text_once),
    Stage(
        "concatenated",
        uncounted,
        **_computed("channels", "bind_channels", ""),
        recipes=("model", "concatenated", "part"),
        once=channels_once,
    ),
)
