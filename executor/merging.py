"""Modules whose weights are computed of two others: in float32, each with its LoRAs, rounded once at the end."""

from __future__ import annotations

from typing import Any

import torch

from katz_graph.executor.weight_set import WeightSets
from katz_graph.models.load import ModelStore
from katz_graph.recipe import Component, Lora, MergedComponent

MERGING = 8  # bytes for each weight, while two modules in float32 are at hand


@torch.no_grad()
def merged_module(part: MergedComponent, target: str, dtype: torch.dtype) -> Any:
    """The module on the CPU. `target` is `unet`, `text_encoder` or `text_encoder_2`, as LoRA files name what they are for."""
    module, other = (_whole(source, loras, target) for source, loras in part.sources)
    weights = dict(other.named_parameters())
    for name, weight in module.named_parameters():
        of_first, of_second = next((first, second) for beginning, first, second in part.scales if name.startswith(beginning))
        weight.mul_(of_first).add_(weights[name], alpha=of_second)
    return module.to(dtype)


def _whole(part: Component, loras: tuple[Lora, ...], target: str) -> Any:
    """A module of its own in float32, which nobody else holds."""
    if isinstance(part, MergedComponent):
        module = merged_module(part, target, torch.float32)
    else:
        store = ModelStore()
        module = (store.unet if target == "unet" else store.text_encoder)(part, "cpu", torch.float32)
    WeightSets(module).use(loras, target)
    return module
