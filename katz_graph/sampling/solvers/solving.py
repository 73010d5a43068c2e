"""Defines the form of all solvers as generator functions, and the two quantities of a step in sigma
space.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import torch
from torch import Tensor

from katz_graph.ir.values import Query

NoiseSource = Callable[[Tensor, Tensor], Tensor]
"""Maps (sigma, next sigma) to unit noise of x's shape for that interval."""

Solving = Generator[Query, Tensor, Tensor]
"""Yields a point to evaluate and is sent the denoised picture there, so that it is a definition and
one request's state at once.
"""

Sampler = Callable[[Tensor, Tensor, NoiseSource], Solving]
"""Maps (x, sigmas [N + 1], noise) to a generator that asks for evaluations, the same for every x,
and returns the final x.
"""


def slope(x: Tensor, sigma: Tensor, denoised: Tensor) -> Tensor:
    """Returns dx/dσ of the probability flow (Karras et al. 2022, equation 3)."""
    return (x - denoised) / sigma


def ancestral_split(sigma: Tensor, sigma_next: Tensor, eta: float = 1.0) -> tuple[Tensor, Tensor]:
    """Returns (σ_down, σ_up) with σ_down² + σ_up² = σ'² and σ_up = η σ' sqrt(1 - σ'²/σ²), at most
    σ' (Song et al. 2021, "Denoising Diffusion Implicit Models", equation 16, in sigma space).
    """
    if not eta:
        return sigma_next, torch.zeros_like(sigma_next)
    up = torch.minimum(
        sigma_next, eta * (sigma_next**2 * (sigma**2 - sigma_next**2) / sigma**2) ** 0.5
    )
    return (sigma_next**2 - up**2) ** 0.5, up
