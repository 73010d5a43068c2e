"""Defines the paths between pictures and noise that models are trained on: x = α(σ) x0 + σ noise.

Paths compute every value that depends on α, so that solvers do not depend on a particular path.
Must not know models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from katz_graph.core.errors import InputError

NEAR_NOISE = 0.9999  # replaces a flow's level 1 inside a step; the ecosystem's value


@dataclass(frozen=True, slots=True)
class AncestralStep:
    """Splits a step into a deterministic part and new noise: x' = scale · x(down) + up · noise."""

    down: Tensor  # 0-d: the level solved to
    scale: Tensor | float  # 0-d
    up: Tensor  # 0-d


class Path(Protocol):
    """Relates pictures, noise and levels σ. Levels are 0-d tensors on the CPU and fall to 0, the
    picture.
    """

    def alpha(self, sigma: Tensor) -> Tensor | float:
        """Returns the share of the picture at this level."""

    def relative(self, sigma: Tensor) -> Tensor:
        """Returns σ / α, the level of the variance exploding path with the same signal-to-noise
        ratio.
        """

    def level(self, relative: Tensor) -> Tensor:
        """Returns σ, given σ / α."""

    def below_noise(self, sigmas: Tensor) -> Tensor:
        """Returns levels [N + 1]; lowers the first if it is pure noise."""

    def halfway(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        """Returns the level halfway between two in log(σ / α)."""

    def ancestral(self, sigma: Tensor, sigma_next: Tensor, eta: float) -> AncestralStep:
        """Splits a step with the share `eta` of fresh noise: 0 for none, 1 for the largest share
        that preserves the distribution.
        """

    def noised(self, latent: Tensor, noise: Tensor, sigma: Tensor | float) -> Tensor:
        """Returns the point of the path at this level."""

    def started(self, latent: Tensor, noise: Tensor, sigma: float) -> Tensor:
        """Returns the point at which a run begins."""

    def finished(self, x: Tensor, sigma: float) -> Tensor:
        """Returns x [B, C, h, w] at the last level as a latent for a further run."""

    def check(self, sigmas: Sequence[float]) -> None:
        """Raises InputError for levels outside the path."""


def middle_level(sigma: Tensor, sigma_next: Tensor) -> Tensor:
    """Returns the level halfway in log σ."""
    return torch.lerp(sigma.log(), sigma_next.log(), 0.5).exp()


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


@dataclass(frozen=True, slots=True)
class VarianceExploding:
    """Preserves the picture and adds noise: x = x0 + σ noise (Karras et al. 2022, table 1, "VE").

    `sigma_max` is the highest level of the model's table. Runs that begin at or above it add noise
    of variance 1 + σ², which is unit noise in the model's scale.
    """

    sigma_max: float

    def alpha(self, sigma: Tensor) -> float:
        return 1.0

    def relative(self, sigma: Tensor) -> Tensor:
        return sigma

    def level(self, relative: Tensor) -> Tensor:
        return relative

    def below_noise(self, sigmas: Tensor) -> Tensor:
        return sigmas

    def halfway(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        return middle_level(sigma, sigma_next)

    def ancestral(self, sigma: Tensor, sigma_next: Tensor, eta: float) -> AncestralStep:
        down, up = ancestral_split(sigma, sigma_next, eta)
        return AncestralStep(down, 1.0, up)

    def noised(self, latent: Tensor, noise: Tensor, sigma: Tensor | float) -> Tensor:
        return latent + noise * sigma

    def started(self, latent: Tensor, noise: Tensor, sigma: float) -> Tensor:
        if sigma > self.sigma_max or math.isclose(sigma, self.sigma_max, rel_tol=1e-5):
            # In float32, like the levels: at the top of a zero-terminal-SNR table one bit is half a
            # thousandth of the latent.
            return latent + noise * (1 + torch.tensor(sigma, dtype=torch.float32).square()).sqrt()
        return self.noised(latent, noise, sigma)

    def finished(self, x: Tensor, sigma: float) -> Tensor:
        return x

    def check(self, sigmas: Sequence[float]) -> None:
        pass


EXPLODING = VarianceExploding(math.inf)
"""Path for computations inside solvers; no run begins on it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Interpolates picture and noise: x = (1 - σ) x0 + σ noise; the model predicts noise - x0 (Liu
    et al. 2022, "Flow Straight and Fast"; Lipman et al. 2022, "Flow Matching").

    `highest` replaces level 1, pure noise, in logarithms of the signal.
    """

    highest: float

    def alpha(self, sigma: Tensor) -> Tensor:
        return 1 - sigma

    def relative(self, sigma: Tensor) -> Tensor:
        return sigma / (1 - sigma)

    def level(self, relative: Tensor) -> Tensor:
        return relative / (1 + relative)

    def below_noise(self, sigmas: Tensor) -> Tensor:
        if not len(sigmas) or sigmas[0] < 1:
            return sigmas
        return torch.cat([sigmas.new_tensor([self.highest]), sigmas[1:]])

    def halfway(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        if sigma >= 1:
            return torch.full_like(sigma, NEAR_NOISE)
        return torch.lerp(sigma.logit(), sigma_next.logit(), 0.5).sigmoid()

    def ancestral(self, sigma: Tensor, sigma_next: Tensor, eta: float) -> AncestralStep:
        """Steps to σ_down = σ' (1 + η (σ'/σ - 1)), scales x to the picture's share at σ', and adds
        noise up to σ'.
        """
        down = sigma_next * (1 + (sigma_next / sigma - 1) * eta)
        scale = (1 - sigma_next) / (1 - down)
        return AncestralStep(down, scale, (sigma_next**2 - (down * scale) ** 2).clamp(min=0) ** 0.5)

    def noised(self, latent: Tensor, noise: Tensor, sigma: Tensor | float) -> Tensor:
        return noise * sigma + latent * (1.0 - sigma)

    def started(self, latent: Tensor, noise: Tensor, sigma: float) -> Tensor:
        return self.noised(latent, noise, sigma)

    def finished(self, x: Tensor, sigma: float) -> Tensor:
        return x / (1.0 - sigma)

    def check(self, sigmas: Sequence[float]) -> None:
        if sigmas and (max(sigmas) > 1 or sigmas[-1] == 1):
            listed = ", ".join(f"{sigma:g}" for sigma in sigmas)
            raise InputError(
                "sigmas: this model is a flow, expected levels from 1 (noise) to 0 (picture) that "
                f"end below 1; got {listed}"
            )


class PictureFlow(Flow):
    """Leads from a picture, which the model sees without noise at every level, to another one."""

    def noised(self, latent: Tensor, noise: Tensor, sigma: Tensor | float) -> Tensor:
        return latent

    def finished(self, x: Tensor, sigma: float) -> Tensor:
        return x
