"""Defines what stages and samplers pass on. Plain tensors, so that they can be sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Features:
    """The state between two blocks of a network with skips."""

    hidden: Tensor  # [B, C, h, w]
    embedding: Tensor  # [B, E]: time embedding with the added conditions
    skips: tuple[Tensor, ...]  # by position: 0 is conv_in's output, then each down block's in order
    step: Step  # the evaluation it belongs to


@dataclass(frozen=True, slots=True)
class Tokens:
    """The state inside a transformer between two blocks."""

    hidden: Tensor  # [B, N, D]: the picture's, row by row of patches
    text: Tensor | None  # [B, T, D]; None behind the last block that gives one
    embedding: Tensor  # [B, E]: of the timestep and the pooled text
    step: Step  # the evaluation it belongs to
    # [B, N, D] each, of earlier blocks, in order: those that a later block reads too
    skips: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Residuals:
    """Holds a ControlNet's residuals: one tensor per skip position, and one for the mid block's
    output. Already multiplied by its strength.
    """

    down: tuple[Tensor, ...]
    mid: Tensor


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """Holds a prompt as a network takes it."""

    hidden: Tensor  # [B, T, D]; of CLIP alone T is a multiple of a row, 77
    pooled: Tensor | None = None  # [B, P]
    # [B, 7]: original height and width, crop top and left, target height and width, aesthetic
    # score
    sizes: Tensor | None = None
    guidance: Tensor | None = None  # [B]: that a distilled model is told
    mask: Tensor | None = None  # [B, T] bool: false for tokens that fill a text up; None for none


Parametrisation = Literal[
    "epsilon", "v_prediction", "sample", "consistency", "edm", "flow_prediction", "raw"
]
"""Names the meaning of the model's output, see `prediction.to_denoised`; `raw` is left to a
diffusers scheduler.
"""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One call of the model, known before the run."""

    index: int  # of the evaluation, from 0
    step: int  # the interval of the schedule it belongs to, from 0
    sigma: float  # the noise level the model sees


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """Asks, for a sampler: what is the denoised picture in `x`?"""

    x: Tensor  # [B, C, h, w] float32
    sigma: Tensor  # 0-d
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Holds the model's inputs of one evaluation: tensors with a row for each picture, so that rows
    of different noise levels, and of different requests, can share a call.
    """

    x: Tensor  # [B, C, h, w], float32 on the path; under a mask, with its kept part replaced
    model_input: Tensor  # [B, C, h, w] in the model's dtype, scaled as it was trained
    sigma: Tensor  # [B] float64: the noise level
    timestep: Tensor  # [B] float64: what the model is told; a fraction on flows

    @classmethod
    def of(cls, x: Tensor, model_input: Tensor, sigma: float, timestep: float) -> Self:
        """Makes a step whose rows are all of one noise level."""
        rows = partial(torch.full, (len(x),), dtype=torch.float64, device=x.device)
        return cls(x, model_input, rows(sigma), rows(timestep))


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes [B] -> [B, 1, ...] in the dtype of `like` [B, ...]: factors, rounded once."""
    return values.to(like.dtype).reshape(-1, *(1 for _ in like.shape[1:]))
