"""What one stage of a UNet hands to the next. Plain tensors, so that it can be sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from katz_graph.sampling.evaluation import Step


@dataclass(frozen=True, slots=True)
class Features:
    """The state inside a UNet between two blocks."""

    hidden: Tensor  # [B, C, h, w]
    embedding: Tensor  # [B, E]: time embedding with the added conditions
    skips: tuple[Tensor, ...]  # by position: 0 is conv_in's output, then each down block's in order
    step: Step  # the evaluation it belongs to


@dataclass(frozen=True, slots=True)
class Residuals:
    """What a ControlNet adds: one tensor per skip position, and one for the mid block's output. Already multiplied by its strength."""

    down: tuple[Tensor, ...]
    mid: Tensor


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """A prompt as a UNet takes it."""

    hidden: Tensor  # [B, 77·chunks, D]
    pooled: Tensor | None = None  # [B, P], SDXL
    sizes: Tensor | None = None  # [B, 7], SDXL: original height and width, crop top and left, target height and width, aesthetic score
