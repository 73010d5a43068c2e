"""Holds the operands of `lora_patch`: weights, their originals, and the products that LoRAs add."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Delta:
    """Holds scale · up · down, which one LoRA adds to a weight [N, ...]: up [N, r], and down with r
    times as many values as the weight has for one of its N outputs, in the order of its axes; on
    any device.
    """

    up: Tensor
    down: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class Patch:
    """Pairs a weight [N, C] or [N, C, H, W], contiguous or channels-last, with its original, which
    lies alike on the same device and may be the weight itself, and with what is added to it.
    """

    weight: Tensor
    original: Tensor
    deltas: Sequence[Delta]
