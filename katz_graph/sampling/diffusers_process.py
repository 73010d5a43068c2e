"""Samples one request with a diffusers scheduler, step for step like StableDiffusionPipeline and
its img2img form.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from typing import Any

import diffusers
import torch
from diffusers.utils.torch_utils import randn_tensor
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.messages import first_line
from katz_graph.host.transfer import to_device
from katz_graph.ir.values import Evaluation, Step
from katz_graph.sampling.noise import seeded
from katz_graph.sampling.prediction import to_denoised
from katz_graph.sampling.spec import DiffusersSpec

PREDICTIONS = ("epsilon", "v_prediction", "sample")  # convertible to a denoised latent
NEEDED = ("set_timesteps", "scale_model_input", "add_noise", "step")


@dataclass(frozen=True, slots=True, eq=False)
class PreparedScheduler:
    """Holds a scheduler with its timesteps set, and the timesteps that remain after `strength`."""

    scheduler: Any
    timesteps: Tensor  # [N], descending; schedulers that evaluate twice repeat values
    evaluations: tuple[Evaluation, ...]


def prepare_scheduler(spec: DiffusersSpec) -> PreparedScheduler:
    """Makes a fresh scheduler for one request. Timesteps and levels are on the host, so that
    comparisons do not wait for a device. Raises InputError if diffusers has no such scheduler, or
    if it cannot be set up with this number of steps.
    """
    scheduler_class: Any = getattr(diffusers, spec.scheduler_class, None)
    if not all(hasattr(scheduler_class, name) for name in NEEDED):
        raise InputError(
            f"scheduler {spec.scheduler_class!r}: diffusers {diffusers.__version__} has no such "
            "scheduler for images"
        )
    if spec.steps < 1 or not 0 <= spec.strength <= 1:
        raise InputError(
            f"expected at least 1 step and a strength in 0..1, got {spec.steps} and {spec.strength}"
        )
    config = dict(spec.scheduler_config)
    if "noise_sampler_seed" in inspect.signature(scheduler_class.__init__).parameters:
        # it draws noise, by default from the global generator
        config["noise_sampler_seed"] = spec.seed
    try:
        scheduler = scheduler_class.from_config(config)
        scheduler.set_timesteps(spec.steps, device="cpu")
        if not hasattr(scheduler, "init_noise_sigma"):
            raise ValueError("it is not made for Stable Diffusion's latents")
    except Exception as error:  # the constructor may raise any error
        reason = first_line(error)
        raise InputError(
            f"scheduler {spec.scheduler_class} with {spec.steps} steps cannot be set up: {reason}"
        ) from error
    first = (spec.steps - min(int(spec.steps * spec.strength), spec.steps)) * scheduler.order
    timesteps = scheduler.timesteps[first:]
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(first)
    sigmas = _sigmas(scheduler, first, timesteps)
    return PreparedScheduler(
        scheduler,
        timesteps,
        tuple(
            Evaluation(index, index // scheduler.order, sigma) for index, sigma in enumerate(sigmas)
        ),
    )


def _sigmas(scheduler: Any, first: int, timesteps: Tensor) -> list[float]:
    """Returns sigmas for display and plans; the scheduler uses timesteps."""
    if hasattr(scheduler, "sigmas"):
        return [float(sigma) for sigma in scheduler.sigmas[first : first + len(timesteps)]]
    alphas_cumprod = scheduler.alphas_cumprod[timesteps.long()]
    return [float(sigma) for sigma in ((1 - alphas_cumprod) / alphas_cumprod).sqrt()]


class DiffusersProcess:
    """Runs a diffusers scheduler. The latent has the model's dtype, as in the pipelines;
    predictions are raw.
    """

    def __init__(
        self, spec: DiffusersSpec, latent: Tensor, device: torch.device | str, dtype: torch.dtype
    ) -> None:
        prepared = prepare_scheduler(spec)
        self.evaluations = prepared.evaluations
        self._scheduler, self._timesteps = prepared.scheduler, prepared.timesteps
        self._step: Step | None = None
        self._done = 0

        generator = seeded(spec.seed)
        accepted = inspect.signature(self._scheduler.step).parameters
        offered = {"generator": generator, "eta": spec.eta}
        self._step_arguments = {name: value for name, value in offered.items() if name in accepted}

        latent = latent.to(dtype)
        noise = randn_tensor(latent.shape, generator=generator, dtype=dtype)
        if spec.strength == 1:
            latent = noise * self._scheduler.init_noise_sigma
        elif self.evaluations:
            first = self._timesteps[:1].repeat(len(latent))
            latent = self._scheduler.add_noise(latent, noise, first)
        self._x = to_device(latent, device)
        self._prepare_step()

    def next_step(self) -> Step | None:
        return self._step

    def advance(self, prediction: Tensor) -> None:
        if self._step is None:
            raise RuntimeError("the sampling is done: no step is left")
        timestep = self._timesteps[self._done]
        self._x = self._scheduler.step(
            prediction, timestep, self._x, **self._step_arguments, return_dict=False
        )[0]
        self._done += 1
        self._prepare_step()

    def estimate(self, prediction: Tensor) -> Tensor:
        """Estimates the denoised latent in sigma space, after scaling the model's input from unit
        variance to sigma space. Returns the scaled input for an unknown kind of prediction.
        """
        assert self._step is not None  # a step is current
        x = self._step.model_input.float() * math.sqrt(self.evaluations[self._done].sigma ** 2 + 1)
        kind = self._scheduler.config.get("prediction_type", "epsilon")
        return to_denoised(prediction, replace(self._step, x=x), kind) if kind in PREDICTIONS else x

    @property
    def result(self) -> Tensor:
        if self._step is not None:
            raise RuntimeError(
                f"the sampling is not done: {self._done} of {len(self.evaluations)} evaluations"
            )
        return self._x

    @property
    def denoised(self) -> Tensor:
        return self.result  # schedulers do not expose the denoised latent

    def _prepare_step(self) -> None:
        if self._done == len(self.evaluations):
            self._step = None
            return
        evaluation, timestep = self.evaluations[self._done], self._timesteps[self._done]
        scaled = self._scheduler.scale_model_input(self._x, timestep)
        self._step = Step.of(self._x, scaled, evaluation.sigma, timestep.item())
