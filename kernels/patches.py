"""Defines the operands of `lora_patch`: weights, their originals, and the deltas of LoRAs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Send = Callable[[Tensor], Tensor]
"""Copies bytes from the host to the device of the weights."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Holds scale · up · down, which one LoRA adds to a weight [N, ...]. up is [N, r]; down has r
    rows, each with as many values as one of the weight's N rows, in the same axis order. Both may
    be on any device.
    """

    up: Tensor
    down: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class Patch:
    """Pairs a weight [N, C] or [N, C, H, W], contiguous or channels-last, with its original and the
    deltas to add. The original has the same layout and device, and may be the weight itself.
    """

    weight: Tensor
    original: Tensor
    deltas: Sequence[Delta]
