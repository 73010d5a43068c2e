"""Implements UniPC: one multistep formula that predicts the next point and, once the model has seen
it, corrects it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from katz_graph.ir.values import Query
from katz_graph.sampling.solvers.solving import NoiseSource, Solving

Variant = Literal["bh1", "bh2"]

LAST_LEVEL = 0.001  # stands for 0, where log σ ends; the ecosystem's value
HIGHEST_ORDER = 3


def uni_pc(x: Tensor, sigmas: Tensor, noise: NoiseSource, *, variant: Variant = "bh1") -> Solving:
    """Runs UniPC-3 for data prediction, multistep, of lower order in the first steps and the last,
    no corrector after the last (Zhao et al. 2023, "UniPC", algorithms 1 and 2, section 3.3 and
    appendix; B(h) = h or e^h - 1).

    The paper's variance preserving variables are x and the levels of sigma space over sqrt(1 + σ²),
    which cancels throughout. A last level of 0 is approached to LAST_LEVEL.
    """
    steps = len(sigmas) - 1
    if steps < 1:
        return x
    if sigmas[-1] == 0:
        sigmas = torch.cat([sigmas[:-1], torch.minimum(sigmas.new_tensor(LAST_LEVEL), sigmas[-2] / 2)[None]])
    levels = sigmas.tolist()
    highest = max(1, min(HIGHEST_ORDER, steps - 1))
    predictions: list[Tensor] = []  # newest first
    predicted, order = x, 0
    for step in range(steps):
        denoised = yield Query(predicted, sigmas[step], step)
        if order:
            x = _advanced(x, predictions[:order], levels[step - 1 :: -1][:order], levels[step], variant, denoised)
        predictions = [denoised, *predictions][:highest]
        reached = step + 1
        order = min(reached, highest, steps + 1 - reached) if reached >= highest else reached
        predicted = _advanced(x, predictions[:order], levels[step::-1][:order], levels[reached], variant)
    return predicted


def _advanced(
    x: Tensor, predictions: Sequence[Tensor], levels: Sequence[float], level: float, variant: Variant, arrived: Tensor | None = None
) -> Tensor:
    """Advances from the newest known level to `level`: UniP of order len(predictions), or UniC with
    the prediction that `arrived` there.
    """
    newest = predictions[0]
    h = math.log(levels[0] / level)
    parts = [math.log(levels[0] / known) / h for known in levels[1:]]
    differences = [(older - newest) / part for older, part in zip(predictions[1:], parts, strict=True)]
    if arrived is not None:
        parts, differences = [*parts, 1.0], [*differences, arrived - newest]
    scale = -h if variant == "bh1" else math.expm1(-h)
    x = level / levels[0] * x - math.expm1(-h) * newest
    for weight, difference in zip(_coefficients(parts, h, scale), differences, strict=True):
        x = x - scale * weight * difference
    return x


def _coefficients(parts: Sequence[float], h: float, scale: float) -> list[float]:
    """Solves equation 9 for a, with φ_k of -h; a single one is 1/2, as for the paper's orders 1 and
    2.
    """
    count = len(parts)
    if count < 2:
        return [0.5] * count
    moments, phi = [], math.expm1(-h) / -h - 1
    for k in range(1, count + 1):
        moments.append(phi * math.factorial(k) / scale)
        phi = phi / -h - 1 / math.factorial(k + 1)
    powers = np.array([[part ** (k - 1) for part in parts] for k in range(1, count + 1)])
    solution: list[float] = np.linalg.solve(powers, np.array(moments)).tolist()
    return solution
