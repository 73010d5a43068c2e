"""Holds the noise levels that a model was trained on, and maps them to its timesteps and back. Must
not know how they are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from katz_graph.errors import InputError
from katz_graph.ir.values import Parametrisation

TERMINAL_ALPHA_CUMPROD = 4.8973451890853435e-08
"""Stands for the zero of a zero-terminal-SNR table, whose sigma would be infinite; ComfyUI's value
(sigma 4518.76).
"""


@dataclass(frozen=True, slots=True, eq=False)
class NoiseTable:
    """Holds sigma_t = sqrt((1 - ᾱ_t) / ᾱ_t) of every training timestep t, ascending, and the
    model's parametrisation.
    """

    sigmas: Tensor  # [T] float32, CPU
    log_sigmas: Tensor  # [T] float32, CPU
    parametrisation: Parametrisation

    @property
    def sigma_min(self) -> float:
        return float(self.sigmas[0])

    @property
    def sigma_max(self) -> float:
        return float(self.sigmas[-1])

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        """Maps real timesteps [...] to sigmas [...], log sigma interpolated linearly between
        neighbours, the ends held.
        """
        last = len(self.log_sigmas) - 1
        timesteps = timesteps.float().clamp(0, last)
        below = timesteps.long().clamp(max=last - 1)
        share = timesteps - below
        return ((1 - share) * self.log_sigmas[below] + share * self.log_sigmas[below + 1]).exp()

    def timestep_at(self, sigma: float | Tensor) -> float:
        """Returns the timestep that the model is told: the index nearest in log sigma."""
        log_sigma = torch.as_tensor(sigma, dtype=torch.float32, device="cpu").log()
        return int((log_sigma - self.log_sigmas).abs().argmin())

    def percent_to_sigma(self, percent: float) -> float:
        """Maps progress of the whole schedule (0 = pure noise, 1 = done) to sigma; infinite at or
        below 0, zero at or above 1.
        """
        if percent <= 0:
            return math.inf
        if percent >= 1:
            return 0.0
        return float(self.sigma_at(torch.tensor((1.0 - percent) * (len(self.sigmas) - 1))))


def noise_table(config: Mapping[str, Any]) -> NoiseTable:
    """Returns the table of a diffusers scheduler's configuration; defaults are Stable Diffusion
    1.5's. InputError for a configuration that is not supported.
    """
    alphas_cumprod = torch.cumprod(1 - _betas(config), dim=0)
    if config.get("rescale_betas_zero_snr"):
        alphas_cumprod = _rescale_to_zero_terminal_snr(alphas_cumprod)
    sigmas = ((1 - alphas_cumprod) / alphas_cumprod).sqrt()
    prediction = config.get("prediction_type", "epsilon")
    if prediction not in ("epsilon", "v_prediction"):
        raise InputError(f"scheduler configuration: prediction_type {prediction!r} is not supported; expected epsilon or v_prediction")
    return NoiseTable(sigmas.float(), sigmas.log().float(), prediction)


def _betas(config: Mapping[str, Any]) -> Tensor:
    """Returns [T] float64."""
    trained = config.get("trained_betas")
    if trained is not None:
        return torch.tensor(trained, dtype=torch.float64)
    count = int(config.get("num_train_timesteps", 1000))
    first, last = float(config.get("beta_start", 8.5e-4)), float(config.get("beta_end", 1.2e-2))
    match config.get("beta_schedule", "scaled_linear"):
        case "scaled_linear":
            return torch.linspace(math.sqrt(first), math.sqrt(last), count, dtype=torch.float64) ** 2
        case "linear":
            return torch.linspace(first, last, count, dtype=torch.float64)
        case "squaredcos_cap_v2":
            # Nichol and Dhariwal 2021, equation 17
            cumulative = ((torch.linspace(0, 1, count + 1, dtype=torch.float64) + 0.008) / 1.008 * math.pi / 2).cos() ** 2
            return (1 - cumulative[1:] / cumulative[:-1]).clamp(max=0.999)
        case other:
            raise InputError(
                f"scheduler configuration: beta_schedule {other!r} is not supported; expected scaled_linear, linear or squaredcos_cap_v2"
            )


def _rescale_to_zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """Shifts and scales sqrt(ᾱ) so that the last becomes zero and the first stays (Lin et al. 2023,
    algorithm 1).
    """
    roots = alphas_cumprod.sqrt()
    rescaled = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
    rescaled[-1] = TERMINAL_ALPHA_CUMPROD
    return rescaled
