"""Makes noise tables of models that a patch declares distilled, or of continuous noise levels,
whatever they were trained as.

Each answers as `NoiseTable` does, so that schedules, windows and samplers need not know.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.errors import InputError
from katz_graph.ir.values import Parametrisation
from katz_graph.patches import ContinuousSampling, DiscreteSampling
from katz_graph.sampling.noise_table import NoiseTable, noise_table

PARAMETRISATIONS: Mapping[str, Parametrisation] = {
    "eps": "epsilon",
    "v_prediction": "v_prediction",
    "x0": "sample",
    "lcm": "consistency",
    "edm": "edm",
}
DISTILLED_TIMESTEPS = 50  # of a latent consistency model's teacher (Luo et al. 2023, section 4.3: skipping 20 of 1000)
CONTINUOUS_LEVELS = 1000  # that schedules which read a table find in a continuous one


@dataclass(frozen=True, slots=True, eq=False)
class DistilledTable(NoiseTable):
    """Keeps every `stride`-th training timestep, the last included; timesteps stay those of
    training.
    """

    stride: int = 1
    trained: int = 0  # timesteps of training

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        """Maps real training timesteps to sigmas, log sigma interpolated between the entries."""
        return NoiseTable.sigma_at(self, (timesteps.float() - (self.stride - 1)) / self.stride)

    def timestep_at(self, sigma: float | Tensor) -> float:
        """Returns the training timestep of the entry nearest in log sigma."""
        return NoiseTable.timestep_at(self, sigma) * self.stride + self.stride - 1

    def percent_to_sigma(self, percent: float) -> float:
        if percent <= 0:
            return math.inf
        if percent >= 1:
            return 0.0
        return float(self.sigma_at(torch.tensor((1.0 - percent) * (self.trained - 1))))


@dataclass(frozen=True, slots=True, eq=False)
class ContinuousTable(NoiseTable):
    """Maps noise levels without timesteps: the model is told ln(σ) / 4 (Karras et al. 2022, table
    1, c_noise of EDM).
    """

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        return (timesteps.float() * 4).exp()

    def timestep_at(self, sigma: float | Tensor) -> float:
        return float(torch.as_tensor(sigma, dtype=torch.float32, device="cpu").log()) / 4

    def percent_to_sigma(self, percent: float) -> float:
        """Interpolates linearly in log sigma between the two ends."""
        if percent <= 0:
            return math.inf
        if percent >= 1:
            return 0.0
        first, last = math.log(self.sigma_max), math.log(self.sigma_min)
        return math.exp(first + (last - first) * percent)


def altered_table(config: Mapping[str, Any], patch: DiscreteSampling | ContinuousSampling) -> NoiseTable:
    """Returns the table of a scheduler's configuration under a patch. InputError for invalid noise
    levels.
    """
    parametrisation = PARAMETRISATIONS[patch.prediction]
    if isinstance(patch, ContinuousSampling):
        return _continuous(patch, parametrisation)
    trained = noise_table({**config, "prediction_type": "epsilon", "rescale_betas_zero_snr": patch.zero_terminal_snr})
    if patch.prediction == "lcm":
        return _distilled(trained)
    return replace(trained, parametrisation=parametrisation)


def _continuous(patch: ContinuousSampling, parametrisation: Parametrisation) -> NoiseTable:
    if not 0 < patch.sigma_min < patch.sigma_max:
        raise InputError(f"ModelSamplingContinuousEDM: expected 0 < sigma_min < sigma_max, got {patch.sigma_min:g} and {patch.sigma_max:g}")
    log_sigmas = torch.linspace(math.log(patch.sigma_min), math.log(patch.sigma_max), CONTINUOUS_LEVELS)
    return ContinuousTable(log_sigmas.exp(), log_sigmas, parametrisation)


def _distilled(trained: NoiseTable) -> NoiseTable:
    count = len(trained.sigmas)
    stride = max(count // DISTILLED_TIMESTEPS, 1)
    entries = torch.arange(count - 1, -1, -stride)[:DISTILLED_TIMESTEPS].flip(0)
    sigmas = trained.sigmas[entries]
    return DistilledTable(sigmas, sigmas.log(), "consistency", stride, count)
