"""What a sampler asks and what a worker is told: one call of the model, as plan data and with its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Parametrisation = Literal["epsilon", "v_prediction", "sample", "consistency", "edm", "raw"]
"""What the model's output means, see `prediction.to_denoised`; `raw` is left to a diffusers scheduler."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One call of the model, known before the run."""

    index: int  # of the evaluation, from 0
    step: int  # the interval of the schedule it belongs to, from 0
    sigma: float  # the noise level the model sees


@dataclass(frozen=True, slots=True, eq=False)
class Query:
    """A sampler's question: what is the denoised picture in `x`?"""

    x: Tensor  # [B, C, h, w] float32
    sigma: Tensor  # 0-d
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An evaluation with what the model is given."""

    index: int
    step: int
    sigma: float
    x: Tensor  # [B, C, h, w], float32 in sigma space; under a mask, with its kept part replaced
    model_input: Tensor  # [B, C, h, w] in the model's dtype, scaled as it was trained
    timestep: float  # whole in our samplers; diffusers schedulers may give fractions
    parametrisation: Parametrisation
