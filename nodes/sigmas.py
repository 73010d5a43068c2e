"""Provides noise levels and samplers for custom samplers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from katz_graph.node import Node, Widget
from katz_graph.node.knobs import SamplerName, SchedulerName, Share, Steps
from katz_graph.node.wires import Model, Sampler, Sigmas
from katz_graph.sampling.aligned import ALIGNED_STEPS
from katz_graph.sampling.names import SamplerChoice

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.core.recipe import ModelRecipe
    from katz_graph.sampling.noise_table import NoiseTable

SAMPLERS = "sampling/custom_sampling/samplers"
SCHEDULERS = "sampling/custom_sampling/schedulers"
SIGMAS = "sampling/custom_sampling/sigmas"

Factor = Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.01)]
Level = Annotated[float, Field(ge=0.0, le=5000.0), Widget(step=0.01)]
Shape = Annotated[float, Field(ge=0.0, le=50.0), Widget(step=0.01)]
PictureSide = Annotated[int, Field(ge=16, le=16384)]
NoiseDevice = Literal["gpu", "cpu"]
SIGMA_MAX, SIGMA_MIN = 14.614642, 0.0291675
HALVES = ("high_sigmas", "low_sigmas")


class KSamplerSelect(Node, category=SAMPLERS):
    """Selects a sampler by name, with its usual options."""

    sampler_name: SamplerName = "euler"

    def run(self) -> Sampler:
        return SamplerChoice(self.sampler_name)


class SamplerEulerAncestral(Node, category=SAMPLERS):
    """Selects euler_ancestral: eta is the share of noise redrawn per step, s_noise its scale."""

    eta: Factor = 1.0
    s_noise: Factor = 1.0

    def run(self) -> Sampler:
        return _choice(self, "euler_ancestral")


class SamplerLMS(Node, category=SAMPLERS):
    """Selects lms with this number of past derivatives."""

    order: Annotated[int, Field(ge=1, le=100)] = 4

    def run(self) -> Sampler:
        return _choice(self, "lms")


class SamplerDPMPP_SDE(Node, category=SAMPLERS):
    """Selects dpmpp_sde; r is the relative position of the midpoint in a step. Noise is drawn on
    the CPU for every noise_device.
    """

    eta: Factor = 1.0
    s_noise: Factor = 1.0
    r: Factor = 0.5
    noise_device: NoiseDevice = "gpu"

    def run(self) -> Sampler:
        return _choice(self, "dpmpp_sde")


class SamplerDPMPP_2M_SDE(Node, category=SAMPLERS):
    """Selects dpmpp_2m_sde, midpoint or heun. Noise is drawn on the CPU for every noise_device."""

    solver_type: Literal["midpoint", "heun"] = "midpoint"
    eta: Factor = 1.0
    s_noise: Factor = 1.0
    noise_device: NoiseDevice = "gpu"

    def run(self) -> Sampler:
        return _choice(self, "dpmpp_2m_sde")


class SamplerDPMPP_3M_SDE(Node, category=SAMPLERS):
    """Selects dpmpp_3m_sde. Noise is drawn on the CPU for every noise_device."""

    eta: Factor = 1.0
    s_noise: Factor = 1.0
    noise_device: NoiseDevice = "gpu"

    def run(self) -> Sampler:
        return _choice(self, "dpmpp_3m_sde")


class SamplerER_SDE(Node, category=SAMPLERS):
    """Selects er_sde, or the reverse-time SDE or ODE of the same solver. max_stage is the number of
    predictions that a step reads, eta the share of the SDE's noise (0: ODE).
    """

    solver_type: Literal["ER-SDE", "Reverse-time SDE", "ODE"] = "ER-SDE"
    max_stage: Annotated[int, Field(ge=1, le=3)] = 3
    eta: Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.01)] = 1.0
    s_noise: Factor = 1.0

    def run(self) -> Sampler:
        return _choice(self, "er_sde")


class BasicScheduler(Node, category=SCHEDULERS):
    """Computes a named schedule over the model's noise levels; denoise below 1 takes the end of a
    longer schedule.
    """

    scheduler: SchedulerName = "normal"
    steps: Steps = 20
    denoise: Share = 1.0

    def run(self, model: Model) -> Sigmas:
        import torch

        from katz_graph.sampling.schedules import schedule

        return torch.tensor(
            schedule(self.scheduler, _table(model), self.steps, self.denoise)[-(self.steps + 1) :]
        )


class KarrasScheduler(Node, category=SCHEDULERS):
    """Computes levels at equal distances in sigma^(1/rho)."""

    steps: Steps = 20
    sigma_max: Level = SIGMA_MAX
    sigma_min: Level = SIGMA_MIN
    rho: Factor = 7.0

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import karras_levels

        return karras_levels(self.steps, self.sigma_max, self.sigma_min, self.rho)


class ExponentialScheduler(Node, category=SCHEDULERS):
    """Computes levels at equal distances in log sigma."""

    steps: Steps = 20
    sigma_max: Level = SIGMA_MAX
    sigma_min: Level = SIGMA_MIN

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import exponential_levels

        return exponential_levels(self.steps, self.sigma_max, self.sigma_min)


class PolyexponentialScheduler(Node, category=SCHEDULERS):
    """Computes levels along a polynomial of degree rho in log sigma."""

    steps: Steps = 20
    sigma_max: Level = SIGMA_MAX
    sigma_min: Level = SIGMA_MIN
    rho: Factor = 1.0

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import polyexponential_levels

        return polyexponential_levels(self.steps, self.sigma_max, self.sigma_min, self.rho)


class VPScheduler(Node, category=SCHEDULERS):
    """Computes levels of the continuous variance preserving process, at equal distances in its
    time.
    """

    steps: Steps = 20
    beta_d: Level = 19.9
    beta_min: Level = 0.1
    eps_s: Annotated[float, Field(ge=0.0, le=1.0), Widget(step=0.0001)] = 0.001

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import variance_preserving_levels

        return variance_preserving_levels(self.steps, self.beta_d, self.beta_min, self.eps_s)


class BetaSamplingScheduler(Node, category=SCHEDULERS):
    """Selects the model's levels at equal quantiles of a Beta distribution over its timesteps."""

    steps: Steps = 20
    alpha: Shape = 0.6
    beta: Shape = 0.6

    def run(self, model: Model) -> Sigmas:
        from katz_graph.sampling.schedules import beta

        return beta(_table(model), self.steps, self.alpha, self.beta)


class SDTurboScheduler(Node, category=SCHEDULERS):
    """Selects the model's levels at every tenth of its timesteps, from pure noise."""

    steps: Annotated[int, Field(ge=1, le=10)] = 1
    denoise: Share = 1.0

    def run(self, model: Model) -> Sigmas:
        from katz_graph.sampling.schedules import turbo

        return turbo(_table(model), self.steps, self.denoise)


class AlignYourStepsScheduler(Node, category=SCHEDULERS):
    """Computes the optimised ten-step schedules of the paper "Align Your Steps", interpolated for
    other numbers of steps.
    """

    model_type: Literal[tuple(ALIGNED_STEPS)] = next(iter(ALIGNED_STEPS))  # type: ignore[valid-type]
    steps: Steps = 10
    denoise: Share = 1.0

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import aligned_levels

        return aligned_levels(self.model_type, self.steps, self.denoise)


class Flux2Scheduler(Node, category=SCHEDULERS):
    """Computes flow levels from the number of steps and the picture's size in pixels."""

    steps: Annotated[int, Field(ge=1, le=4096)] = 20
    width: PictureSide = 1024
    height: PictureSide = 1024

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import levels_for_size

        return levels_for_size(self.steps, self.width, self.height)


class ManualSigmas(Node, category=SIGMAS):
    """Reads levels from a list of numbers."""

    sigmas: str = "1, 0.5"

    def run(self) -> Sigmas:
        from katz_graph.sampling.schedules import parse_levels

        return parse_levels(self.sigmas)


class SplitSigmas(Node, category=SIGMAS, names=HALVES):
    """Splits the levels at a step; both parts contain the level at the split."""

    step: Annotated[int, Field(ge=0, le=10000)] = 0

    def run(self, sigmas: Sigmas) -> tuple[Sigmas, Sigmas]:
        from katz_graph.sampling.schedules import split_levels

        return split_levels(sigmas, self.step)


class SplitSigmasDenoise(Node, category=SIGMAS, names=HALVES):
    """Splits the levels so that low_sigmas has this share of the steps."""

    denoise: Share = 1.0

    def run(self, sigmas: Sigmas) -> tuple[Sigmas, Sigmas]:
        from katz_graph.sampling.schedules import split_at_denoise

        return split_at_denoise(sigmas, self.denoise)


class FlipSigmas(Node, category=SIGMAS):
    """Reverses the levels, to turn a picture into noise."""

    def run(self, sigmas: Sigmas) -> Sigmas:
        from katz_graph.sampling.schedules import flipped

        return flipped(sigmas)


class SetFirstSigma(Node, category=SIGMAS):
    """Replaces the first level."""

    sigma: Annotated[float, Field(ge=0.0, le=20000.0), Widget(step=0.001)] = 136.0

    def run(self, sigmas: Sigmas) -> Sigmas:
        changed: Tensor = sigmas.clone()
        changed[:1] = self.sigma
        return changed


def _choice(node: Node, name: str) -> SamplerChoice:
    """Returns the sampler with the node's values as options."""
    return SamplerChoice(
        name,
        tuple(
            (option, value)
            for option, value in node.model_dump().items()
            if option != "noise_device"
        ),
    )


def _table(model: ModelRecipe) -> NoiseTable:
    from katz_graph.planner.sampling import table_of

    return table_of(model)
