"""How a run begins."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def noised(latent: Tensor, noise: Tensor, sigma: float, sigma_max: float) -> Tensor:
    """The latent at noise level sigma; from the table's maximum (or above) on, the noise has the full variance of 1 + σ²,
    as pure noise has in the model's own scale."""
    from_the_top = sigma > sigma_max or math.isclose(sigma, sigma_max, rel_tol=1e-5)
    # In float32 as the levels are: at the top of a zero-terminal-SNR table one bit of it is half a thousandth of the latent.
    deviation = (1 + torch.tensor(sigma, dtype=torch.float32).square()).sqrt() if from_the_top else sigma
    return latent + noise * deviation
