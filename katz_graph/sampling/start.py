"""How a run begins."""

from __future__ import annotations

import math

from torch import Tensor


def noised(latent: Tensor, noise: Tensor, sigma: float, sigma_max: float) -> Tensor:
    """The latent at noise level sigma; from the table's maximum (or above) on, the noise has the full variance of 1 + σ²,
    as pure noise has in the model's own scale."""
    from_the_top = sigma > sigma_max or math.isclose(sigma, sigma_max, rel_tol=1e-5)
    return latent + noise * (math.sqrt(1 + sigma**2) if from_the_top else sigma)
