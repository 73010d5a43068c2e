"""How a latent enters the model and how its output becomes a denoised latent."""

from __future__ import annotations

import math

from torch import Tensor

from katz_graph.sampling.evaluation import Step


def scale_model_input(x: Tensor, sigma: float) -> Tensor:
    """x / sqrt(σ² + 1): from variance exploding with σ to the unit variance that the model was trained on."""
    return x / math.sqrt(sigma**2 + 1)


def to_denoised(output: Tensor, step: Step) -> Tensor:
    """The model's output [B, C, h, w] -> the denoised latent, float32; a raw prediction is returned as it is.

    epsilon: x - σ·ε; v: x / (σ² + 1) - v·σ / sqrt(σ² + 1) (Salimans and Ho 2022, appendix D, in sigma space).
    """
    match step.parametrisation:
        case "raw":
            return output
        case "epsilon":
            return step.x - output.float() * step.sigma
        case "v_prediction":
            variance = step.sigma**2 + 1
            return step.x / variance - output.float() * (step.sigma / math.sqrt(variance))
