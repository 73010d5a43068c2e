"""Defines the values that stages and samplers exchange. All are plain tensors, so that they can be
sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Features:
    """The state between two blocks of a network with skips."""

    hidden: Tensor  # [B, C, h, w]
    embedding: Tensor  # [B, E]: time embedding plus the extra conditioning
    skips: tuple[Tensor, ...]  # by position: 0 is conv_in's output, then each down block's in order
    step: Step  # of this evaluation


@dataclass(frozen=True, slots=True)
class Tokens:
    """The state of a transformer between two blocks."""

    hidden: Tensor  # [B, N, D]: picture tokens, row by row of patches
    text: Tensor | None  # [B, T, D]; None after the last block that outputs text
    embedding: Tensor  # [B, E]: of the timestep and the pooled text
    step: Step  # of this evaluation
    # [B, N, D] each: outputs of earlier blocks that a later block also reads, in order
    skips: tuple[Tensor, ...] = ()


@dataclass(frozen=True, slots=True)
class Residuals:
    """Holds a ControlNet's residuals, already multiplied by its strength: one tensor per skip
    position, and one for the mid block's output.
    """

    down: tuple[Tensor, ...]
    mid: Tensor


@dataclass(frozen=True, slots=True)
class CachedActivations:
    """Holds what a network's transformer layers read from a template at one evaluation. A layer
    with an output computes the active tokens only; other layers compute all tokens.
    """

    # by number of tokens N of a level of the network: positions [B, A] int64 of the active tokens,
    # which may repeat one
    positions: Mapping[int, Tensor]
    outputs: Mapping[str, Tensor]  # by layer: its output [B, N, D] for the template


@dataclass(frozen=True, slots=True)
class TextEncoding:
    """Holds a prompt in the form that a network takes."""

    hidden: Tensor  # [B, T, D]; for CLIP alone, T is a multiple of 77
    pooled: Tensor | None = None  # [B, P]
    # [B, 7]: original height and width, crop top and left, target height and width, aesthetic
    # score
    sizes: Tensor | None = None
    guidance: Tensor | None = None  # [B]: guidance embedding input of a distilled model
    mask: Tensor | None = None  # [B, T] bool: false for padding tokens; None: no padding
    # [B, N, 2]: numbers of words that the network embeds, -1 after the last; and their weights
    words: Tensor | None = None
    slots: tuple[int, ...] = ()  # the tokens that are vision tokens of pictures, in order


@dataclass(frozen=True, slots=True)
class PictureRows:
    """Holds a picture in the form that a text encoder reads, one row for each merged patch."""

    hidden: Tensor  # [1, N, D]: in place of the embeddings of N tokens
    deep: tuple[Tensor, ...] = ()  # [1, N, D] each: added to the outputs of the first layers


Parametrisation = Literal[
    "epsilon",
    "v_prediction",
    "sample",
    "consistency",
    "edm",
    "flow_prediction",
    "difference",
    "raw",
]
"""Names the meaning of the model's output, see `prediction.to_denoised`; `raw` leaves it to a
diffusers scheduler.
"""
FLOWS: tuple[Parametrisation, ...] = ("flow_prediction", "difference")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One call of the model, known before the run."""

    index: int  # of the evaluation, from 0
    step: int  # index of its interval in the schedule, from 0
    sigma: float  # the noise level the model sees


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A sampler's request for the denoised prediction at `x`."""

    x: Tensor  # [B, C, h, w] float32
    sigma: Tensor  # 0-d
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Holds the model inputs of one evaluation: tensors with one row per picture, so that rows of
    different noise levels and requests can share a call.
    """

    # [B, C, h, w] float32, on the sampling path; the part that a mask preserves is replaced
    x: Tensor
    model_input: Tensor  # [B, C, h, w] in the model's dtype, scaled as in training
    sigma: Tensor  # [B] float64: the noise level
    timestep: Tensor  # [B] float64: the model's timestep input; a fraction on flows

    @classmethod
    def of(cls, x: Tensor, model_input: Tensor, sigma: float, timestep: float) -> Self:
        """Makes a step with one noise level for all rows."""
        rows = partial(torch.full, (len(x),), dtype=torch.float64, device=x.device)
        return cls(x, model_input, rows(sigma), rows(timestep))


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """Reshapes per-row factors [B] -> [B, 1, ...] to broadcast over `like` [B, ...], in its dtype
    (rounded once).
    """
    return values.to(like.dtype).reshape(-1, *(1 for _ in like.shape[1:]))
