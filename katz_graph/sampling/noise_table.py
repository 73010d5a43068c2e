"""Holds the noise levels that a model was trained on, or that a patch declares (distilled,
continuous), and maps them to timesteps and back. Must not know samplers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.patches import ContinuousSampling, FlowSampling, SamplingPatch
from katz_graph.ir.values import Parametrisation
from katz_graph.sampling.path import Flow, Path, PictureFlow, VarianceExploding

FLOW_SCHEDULER = "FlowMatchEulerDiscreteScheduler"
TERMINAL_ALPHA_CUMPROD = 4.8973451890853435e-08
"""Replaces the zero of a zero-terminal-SNR table, whose sigma would be infinite; ComfyUI's value
(sigma 4518.76).
"""
PARAMETRISATIONS: Mapping[str, Parametrisation] = {
    "eps": "epsilon",
    "v_prediction": "v_prediction",
    "x0": "sample",
    "lcm": "consistency",
    "edm": "edm",
}
# timesteps of a latent consistency model (Luo et al. 2023, section 4.3: every 20th of 1000)
DISTILLED_TIMESTEPS = 50
MIN_PROGRESS = 1e-4  # the level at this progress replaces a flow's level 1; the ecosystem's value
DYNAMIC_LEVELS = 10_000  # levels of a flow with a shift by picture size; the ecosystem's value
CONTINUOUS_LEVELS = 1000  # table entries of a continuous model, for schedules that read the table


@dataclass(frozen=True, slots=True, eq=False)
class NoiseTable:
    """Holds sigma_t = sqrt((1 - ᾱ_t) / ᾱ_t) of every training timestep t, ascending, and the
    model's parametrisation.
    """

    sigmas: Tensor  # [T] float32, CPU
    log_sigmas: Tensor  # [T] float32, CPU
    parametrisation: Parametrisation

    @property
    def path(self) -> Path:
        return VarianceExploding(self.sigma_max)

    @property
    def sigma_min(self) -> float:
        return float(self.sigmas[0])

    @property
    def sigma_max(self) -> float:
        return float(self.sigmas[-1])

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        """Maps real timesteps [...] to sigmas [...], with log sigma interpolated linearly. Clamps
        timesteps to the table.
        """
        last = len(self.log_sigmas) - 1
        timesteps = timesteps.float().clamp(0, last)
        below = timesteps.long().clamp(max=last - 1)
        share = timesteps - below
        return ((1 - share) * self.log_sigmas[below] + share * self.log_sigmas[below + 1]).exp()

    def timestep_at(self, sigma: float | Tensor) -> float:
        """Returns the model's timestep input: the index nearest in log sigma."""
        log_sigma = torch.as_tensor(sigma, dtype=torch.float32, device="cpu").log()
        return int((log_sigma - self.log_sigmas).abs().argmin())

    def percent_to_sigma(self, percent: float) -> float:
        """Maps progress through the whole schedule (0 = pure noise, 1 = done) to sigma; infinite at
        or below 0, zero at or above 1.
        """
        if percent <= 0:
            return math.inf
        if percent >= 1:
            return 0.0
        return float(self.sigma_at(torch.tensor((1.0 - percent) * (len(self.sigmas) - 1))))


def noise_table(config: Mapping[str, Any], multiplier: float = 1000.0) -> NoiseTable:
    """Returns the table of a diffusers scheduler's configuration; the default is scaled linear from
    0.00085 to 0.012. `multiplier`: a flow's timestep input per noise level. Raises InputError for
    an unsupported configuration.
    """
    if config.get("_class_name") == FLOW_SCHEDULER:
        return _flow_of(config, multiplier)
    alphas_cumprod = torch.cumprod(1 - _betas(config), dim=0)
    if config.get("rescale_betas_zero_snr"):
        alphas_cumprod = _rescale_to_zero_terminal_snr(alphas_cumprod)
    sigmas = ((1 - alphas_cumprod) / alphas_cumprod).sqrt()
    prediction = config.get("prediction_type", "epsilon")
    if prediction not in ("epsilon", "v_prediction"):
        raise InputError(
            f"scheduler configuration: prediction_type {prediction!r} is not supported; expected "
            "epsilon or v_prediction"
        )
    return NoiseTable(sigmas.float(), sigmas.log().float(), prediction)


def _betas(config: Mapping[str, Any]) -> Tensor:
    """Returns the betas [T] float64."""
    trained = config.get("trained_betas")
    if trained is not None:
        return torch.tensor(trained, dtype=torch.float64)
    count = int(config.get("num_train_timesteps", 1000))
    first, last = float(config.get("beta_start", 8.5e-4)), float(config.get("beta_end", 1.2e-2))
    match config.get("beta_schedule", "scaled_linear"):
        case "scaled_linear":
            return (
                torch.linspace(math.sqrt(first), math.sqrt(last), count, dtype=torch.float64) ** 2
            )
        case "linear":
            return torch.linspace(first, last, count, dtype=torch.float64)
        case "squaredcos_cap_v2":
            # Nichol and Dhariwal 2021, equation 17
            cumulative = (
                (torch.linspace(0, 1, count + 1, dtype=torch.float64) + 0.008) / 1.008 * math.pi / 2
            ).cos() ** 2
            return (1 - cumulative[1:] / cumulative[:-1]).clamp(max=0.999)
        case other:
            raise InputError(
                f"scheduler configuration: beta_schedule {other!r} is not supported; expected "
                "scaled_linear, linear or squaredcos_cap_v2"
            )


def _rescale_to_zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """Shifts and scales sqrt(ᾱ) so that the last becomes zero and the first is unchanged (Lin et
    al. 2023, algorithm 1).
    """
    roots = alphas_cumprod.sqrt()
    rescaled = ((roots - roots[-1]) * roots[0] / (roots[0] - roots[-1])) ** 2
    rescaled[-1] = TERMINAL_ALPHA_CUMPROD
    return rescaled


@dataclass(frozen=True, slots=True, eq=False)
class DistilledTable(NoiseTable):
    """Holds every `stride`-th training timestep, including the last, with its number."""

    stride: int = 1
    trained: int = 0  # number of training timesteps

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        """Maps real training timesteps to sigmas, with log sigma interpolated between entries."""
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
    """Maps noise levels without timesteps: the model's timestep input is ln(σ) / 4 (Karras et al.
    2022, table 1, c_noise of EDM).
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


@dataclass(frozen=True, slots=True, eq=False)
class FlowTable(NoiseTable):
    """Holds the levels of a flow at equal times t, σ(t) = shift t / (1 + (shift - 1) t) (Esser et
    al. 2024, "Scaling Rectified Flow Transformers", equation 23).

    The model's timestep input is σ times `multiplier`. Schedules with equal spacing in that input
    apply the shift again when mapped to σ, as in ComfyUI.
    """

    shift: float = 1.0
    multiplier: float = 1000.0

    @property
    def path(self) -> Path:
        kind = Flow if self.parametrisation == "flow_prediction" else PictureFlow
        return kind(self.percent_to_sigma(MIN_PROGRESS))

    def sigma_at(self, timesteps: Tensor) -> Tensor:
        return _shifted(timesteps.float() / self.multiplier, self.shift)

    def timestep_at(self, sigma: float | Tensor) -> float:
        return float(sigma) * self.multiplier

    def percent_to_sigma(self, percent: float) -> float:
        """Maps progress to sigma: 1 at or below 0, zero at or above 1."""
        return float(_shifted(torch.tensor(1.0 - min(max(percent, 0.0), 1.0)), self.shift))


def flow_table(shift: float = 1.0, levels: int = 1000, multiplier: float = 1000.0) -> FlowTable:
    """Returns the table of a flow. Raises InputError unless `shift` is above 0."""
    if not (math.isfinite(shift) and shift > 0):
        raise InputError(f"shift: expected a number above 0, got {shift:g}")
    sigmas = _shifted(torch.arange(1, levels + 1) / levels, shift)
    return FlowTable(sigmas, sigmas.log(), "flow_prediction", shift, multiplier)


def _flow_of(config: Mapping[str, Any], multiplier: float) -> FlowTable:
    """Returns the table of a flow's configuration. If the shift depends on picture size, always
    uses the largest picture's, as in the ecosystem; a patch may set another shift.
    """
    if config.get("use_dynamic_shifting"):
        shift = math.exp(float(config.get("max_shift", 1.15)))
        return flow_table(shift, DYNAMIC_LEVELS, multiplier)
    levels = int(config.get("num_train_timesteps", 1000))
    return flow_table(float(config.get("shift", 1.0)), levels, multiplier)


def _shifted(time: Tensor, shift: float) -> Tensor:
    return shift * time / (1 + (shift - 1) * time)


def altered_table(config: Mapping[str, Any], patch: SamplingPatch) -> NoiseTable:
    """Returns the table of a patched scheduler's configuration. Raises InputError for invalid noise
    levels.
    """
    if isinstance(patch, FlowSampling):
        flow = flow_table(patch.shift, patch.levels, patch.multiplier)
        return replace(flow, parametrisation="difference") if patch.between_pictures else flow
    parametrisation = PARAMETRISATIONS[patch.prediction]
    if isinstance(patch, ContinuousSampling):
        return _continuous(patch, parametrisation)
    trained = noise_table(
        {**config, "prediction_type": "epsilon", "rescale_betas_zero_snr": patch.zero_terminal_snr}
    )
    if patch.prediction == "lcm":
        return _distilled(trained)
    return replace(trained, parametrisation=parametrisation)


def _continuous(patch: ContinuousSampling, parametrisation: Parametrisation) -> NoiseTable:
    if not 0 < patch.sigma_min < patch.sigma_max:
        raise InputError(
            "ModelSamplingContinuousEDM: expected 0 < sigma_min < sigma_max, got "
            f"{patch.sigma_min:g} and {patch.sigma_max:g}"
        )
    log_sigmas = torch.linspace(
        math.log(patch.sigma_min), math.log(patch.sigma_max), CONTINUOUS_LEVELS
    )
    return ContinuousTable(log_sigmas.exp(), log_sigmas, parametrisation)


def _distilled(trained: NoiseTable) -> NoiseTable:
    count = len(trained.sigmas)
    stride = max(count // DISTILLED_TIMESTEPS, 1)
    entries = torch.arange(count - 1, -1, -stride)[:DISTILLED_TIMESTEPS].flip(0)
    sigmas = trained.sigmas[entries]
    return DistilledTable(sigmas, sigmas.log(), "consistency", stride, count)
