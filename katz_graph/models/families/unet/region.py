"""Builds the operations of a UNet and its ControlNets for a sampler, and completes its
conditioning. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.patches import network_wrapper
from katz_graph.core.recipe import (
    Conditioning,
    ConditioningEntry,
    ControlUse,
    ModelRecipe,
    Sizes,
)
from katz_graph.models.families.shared.conditioning import (
    check_unsupported_conditioning,
    with_channels,
)
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.models.family import Control

NEGATIVE_SCORE = 2.5  # aesthetic score for the refiner's negative conditioning


def complete(
    entry: ConditioningEntry, model: ModelRecipe, latent: Mapping[str, Any], positive: bool
) -> ConditioningEntry:
    """Adds a model's extra input channels, and the aesthetic score of a refiner's negative
    conditioning, if the conditioning sets none.
    """
    shape = unet_architecture(model.network)
    check_unsupported_conditioning(entry, model)
    entry = with_channels(entry, model, latent)
    sizes = entry.sizes or Sizes()
    if shape.is_refiner and not positive and sizes.aesthetic_score is None:
        entry = replace(entry, sizes=replace(sizes, aesthetic_score=NEGATIVE_SCORE))
    return entry


def draw_control(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    use: ControlUse,
) -> tuple[Link, ...]:
    """Adds a ControlNet as one operation that returns all residuals."""
    inputs = {
        "control_net": use.control_net,
        "step": step,
        "conditioning": text,
        "image": use.image,
        "strength": use.strength,
    }
    nodes[name] = NodeCall("ControlNet", inputs)
    return (Link(name, 0),)


def predict(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    controls: Sequence[Control],
    passed: tuple[int, ...] = (),
) -> Link:
    """Adds the three stages of a UNet, or one operation for the whole UNet if a patch wraps it."""
    assert not passed  # UNets declare no chains of blocks
    residuals = {
        f"residuals_{number}": control.residuals[0]
        for number, control in enumerate(controls, start=1)
    }
    common = {"model": model, "conditioning": text}
    if network_wrapper(model.patches) is not None:
        nodes[f"{name}-unet"] = NodeCall(
            "WrappedUNet",
            {"step": step, **common, **residuals, "uncond": name.startswith("negative")},
        )
        return Link(f"{name}-unet", 0)
    encoder, middle, decoder = f"{name}-encoder", f"{name}-mid", f"{name}-decoder"
    nodes[encoder] = NodeCall("UNetEncoder", {"step": step, **common})
    nodes[middle] = NodeCall("UNetMid", {"features": Link(encoder, 0), **common})
    nodes[decoder] = NodeCall("UNetDecoder", {"features": Link(middle, 0), **common, **residuals})
    return Link(decoder, 1)
