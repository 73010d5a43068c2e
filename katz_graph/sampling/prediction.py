"""Scales a latent for the model, and converts the model's output to a denoised latent."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from katz_graph.ir.values import FLOWS, Parametrisation, Step, per_row

EDM_SIGMA_DATA = 0.5  # standard deviation of the data, Karras et al. 2022, section 5
CONSISTENCY_SIGMA_DATA, TIMESTEP_SCALING = 0.5, 10.0  # Luo et al. 2023, as in their code


def scale_model_input(
    x: Tensor, sigma: float, parametrisation: Parametrisation = "epsilon"
) -> Tensor:
    """Returns x / sqrt(σ² + 1): converts variance exploding with σ to the unit variance of
    training. EDM uses σ_data² instead of 1. A flow needs no scaling.
    """
    if parametrisation in FLOWS:
        return x
    data = EDM_SIGMA_DATA if parametrisation == "edm" else 1.0
    return x / math.sqrt(sigma**2 + data**2)


def latent_dtype(parametrisation: Parametrisation, dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of a step's x: float32 in sigma space; the model's `dtype` for raw
    predictions.
    """
    return dtype if parametrisation == "raw" else torch.float32


def to_denoised(output: Tensor, step: Step, parametrisation: Parametrisation) -> Tensor:
    """Converts the model's output [B, C, h, w] to the denoised latent, float32; returns a raw
    prediction unchanged.

    epsilon, and the velocity of a flow: x - σ·output; v: x / (σ² + 1) - v·σ / sqrt(σ² + 1)
    (Salimans and Ho 2022, appendix D, in sigma space); sample: the output; difference: x - output.
    consistency: c_skip x +
    c_out (x - σ·ε) (Luo et al. 2023, section 4.1, with the boundary scalings of their code, on x in
    sigma space as in ComfyUI). edm: c_skip x + c_out F (Karras et al. 2022, table 1). Factors are
    computed per row in float64 and rounded once.
    """
    if parametrisation == "raw":
        return output
    x, output, sigma = step.x, output.float(), step.sigma
    row = partial(per_row, like=x)
    match parametrisation:
        case "epsilon" | "flow_prediction":
            return x - output * row(sigma)
        case "difference":
            return x - output
        case "v_prediction":
            variance = sigma**2 + 1
            return x / row(variance) - output * row(sigma / variance.sqrt())
        case "sample":
            return output
        case "consistency":
            time = step.timestep * TIMESTEP_SCALING
            variance = time**2 + CONSISTENCY_SIGMA_DATA**2
            predicted = x - output * row(sigma)
            return predicted * row(time / variance.sqrt()) + x * row(
                CONSISTENCY_SIGMA_DATA**2 / variance
            )
        case "edm":
            variance = sigma**2 + EDM_SIGMA_DATA**2
            return x * row(EDM_SIGMA_DATA**2 / variance) + output * row(
                sigma * EDM_SIGMA_DATA / variance.sqrt()
            )
