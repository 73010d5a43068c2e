"""Adds LoRAs to the weights of many layers in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.patches import Patch


def lora_patch(patches: Sequence[Patch]) -> None:
    """Sets each weight to its original plus the sum of scale · up · down, in float32, rounded once.
    All weights must be on one device.

    Uses one launch for all weights of a dtype: reads each original once and writes each weight
    once, for any number of LoRAs. Replaces a product, a scaling, a sum and a conversion per layer
    and LoRA.
    """
    if patches and uses_kernels(patches[0].weight):
        from katz_graph.kernels.triton.lora_patch import lora_patch as kernel

        kernel(patches, partial(tiles, "lora_patch", patches[0].weight.device))
    else:
        reference(patches)


def reference(patches: Sequence[Patch]) -> None:
    for patch in patches:
        total = patch.original.to(torch.promote_types(patch.original.dtype, torch.float32))
        for delta in patch.deltas:
            up, down = (factor.to(total) for factor in (delta.up, delta.down))
            total = total + delta.scale * (up @ down.flatten(1)).view(total.shape)
        patch.weight.copy_(total)
