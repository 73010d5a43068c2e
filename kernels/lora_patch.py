"""Adds LoRAs to the weights of many layers: in one launch on a GPU, block by block on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.patches import Patch, Send
from katz_graph.kernels.products import product

ALL = slice(None)
BLOCK = 1 << 19  # values that a CPU sums at a time, few enough for its cache
MAX_ONEDNN_RANK = 128  # ranks up to which oneDNN's products equal those of torch bit for bit


def lora_patch(patches: Sequence[Patch]) -> None:
    """Sets each weight to its original plus the sum of scale · up · down, in float32, rounded once.
    All weights must be on one device.

    Uses one launch for all weights of a dtype: reads each original once and writes each weight
    once, for any number of LoRAs. Replaces a product, a scaling, a sum and a conversion per layer
    and LoRA.
    """
    prepared(patches)(1.0)


def prepared(patches: Sequence[Patch], send: Send | None = None) -> Callable[[float], None]:
    """Prepares `lora_patch`. The result computes it with all scales multiplied by its argument, any
    number of times while the weights and originals exist. `send` copies factors for kernels.
    """
    if patches and uses_kernels(patches[0].weight):
        from katz_graph.kernels.triton.lora_patch import Plan

        device = patches[0].weight.device
        send = send or partial(Tensor.to, device=device, non_blocking=True)
        return Plan(patches, partial(tiles, "lora_patch", device), send)
    return partial(reference, patches)


def reference(patches: Sequence[Patch], strength: float = 1.0) -> None:
    """Computes `lora_patch` with torch. float32 weights are bit-equal to those of diffusers and
    PEFT, which round after the product, after the scaling and after each addition.
    """
    for patch in patches:
        weight, original = patch.weight, patch.original
        kind = torch.promote_types(weight.dtype, torch.float32)
        factors = [
            (
                _sent(one.up, weight, kind),
                _sent(one.down, weight, kind).flatten(1),
                strength * one.scale,
            )
            for one in patch.deltas
        ]
        for rows in row_blocks(weight):
            cut = [(up[rows], down, scale) for up, down, scale in factors]
            _add(weight[rows], original[rows], cut, kind)


def _add(
    weight: Tensor,
    original: Tensor,
    factors: Iterable[tuple[Tensor, Tensor, float]],
    kind: torch.dtype,
) -> None:
    source = original.to(kind).flatten(1)
    in_place = weight.dtype == kind and weight.is_contiguous()
    total = weight.flatten(1) if in_place else torch.empty_like(source)
    one = source.new_ones(())
    for up, down, scale in factors:
        change = product(up, down, MAX_ONEDNN_RANK)
        # Scales and adds in one pass. `add` and `addcmul` do not round after the scaling; the
        # division by 1 separates both roundings.
        torch.addcdiv(source, change, one, value=scale, out=total)
        source = total
    if not in_place:
        weight.copy_(source.view_as(weight))


def _sent(factor: Tensor, weight: Tensor, kind: torch.dtype) -> Tensor:
    """Copies a factor to the weight's device in its own dtype, then converts it."""
    if factor.dtype == kind and factor.device == weight.device:
        return factor
    return factor.to(weight.device, non_blocking=True).to(kind)


def row_blocks(weight: Tensor) -> Sequence[slice]:
    """Returns the rows of a weight to compute at a time: on a CPU, as many as fit into its cache,
    otherwise all.
    """
    values = weight.numel()
    if values <= BLOCK or weight.device.type != "cpu":
        return (ALL,)
    rows = weight.shape[0]
    height = max(1, BLOCK * rows // values)
    return [slice(first, first + height) for first in range(0, rows, height)]
