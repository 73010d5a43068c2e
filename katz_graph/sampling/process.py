"""Samples one request step by step: the caller asks for the next step, evaluates it, and passes the
prediction to `advance`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from katz_graph.host.transfer import to_device
from katz_graph.ir.values import Evaluation, Step
from katz_graph.sampling.areas import LatentMask
from katz_graph.sampling.noise import initial_noise
from katz_graph.sampling.noise_table import NoiseTable
from katz_graph.sampling.prediction import scale_model_input
from katz_graph.sampling.samplers import evaluations, solver_of
from katz_graph.sampling.spec import DiffusersSpec, SamplingSpec, Spec


class Process(Protocol):
    """Defines the interface of all kinds of samplers for the worker's loop."""

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """Returns all evaluations, in order."""

    def next_step(self) -> Step | None:
        """Returns the current step to evaluate (the same until `advance`); None at the end."""

    def advance(self, prediction: Tensor) -> None:
        """Takes the guided prediction [B, C, h, w] of the current step: denoised, or the raw output
        if the parametrisation is raw. Raises RuntimeError at the end.
        """

    def estimate(self, prediction: Tensor) -> Tensor:
        """Returns the denoised latent [B, C, h, w] for a prediction of the current step."""

    @property
    def result(self) -> Tensor:
        """Returns the final latent [B, C, h, w]. Raises RuntimeError before the end."""

    @property
    def denoised(self) -> Tensor:
        """Returns the denoised latent [B, C, h, w] from the first evaluation of the last step; the
        result if none is available.
        """


def start_process(
    spec: Spec, latent: Tensor, table: NoiseTable, device: torch.device | str, dtype: torch.dtype
) -> Process:
    """Begins a request.

    `latent` [B, C, h, w] and the result are multiplied by the VAE's scaling factor. `dtype` is the
    model's. A diffusers scheduler uses its own noise levels instead of `table`.
    """
    if isinstance(spec, DiffusersSpec):
        from katz_graph.sampling.diffusers_process import DiffusersProcess  # loads diffusers

        return DiffusersProcess(spec, latent, device, dtype)
    return SamplingProcess(spec, latent, table, device, dtype)


class SamplingProcess:
    """Runs one of our samplers. The latent stays in float32 for any model dtype."""

    def __init__(
        self,
        spec: SamplingSpec,
        latent: Tensor,
        table: NoiseTable,
        device: torch.device | str,
        dtype: torch.dtype,
    ) -> None:
        solver = solver_of(spec.choice, spec.sigmas, table.path)
        self.evaluations = evaluations(solver.sampler, spec.sigmas)
        self._table, self._dtype = table, dtype
        self._done = 0
        self._step: Step | None = None
        self._denoised: Tensor | None = None
        self._interval = self._denoised_interval = -1  # intervals of the schedule
        self._whole_mask: LatentMask | None = None
        self._mask: LatentMask | None = None  # mask of the current step
        self._gradual, self._ends = spec.gradual, (0.0, 0.0)
        self._result: Tensor | None = None

        latent = to_device(latent.float(), device)
        if not spec.sigmas:
            self._result = latent
            return
        noise = (
            initial_noise(latent.shape, spec.seed, spec.batch_index)
            if spec.add_noise
            else torch.zeros(latent.shape)
        )
        if spec.mask is not None:
            mask_noise = (
                initial_noise(latent.shape, spec.seed + 1)
                if solver.entry.redraws_mask_noise
                else noise
            )
            self._whole_mask = LatentMask(
                spec.mask, latent, to_device(mask_noise, device), table.path
            )
        # of each evaluation, in one copy to the device
        self._levels = _rows([one.sigma for one in self.evaluations], latent)
        self._timesteps = _rows([table.timestep_at(one.sigma) for one in self.evaluations], latent)
        x = table.path.started(latent, to_device(noise, device), spec.sigmas[0])
        # The sigmas stay on the CPU: comparing one on a GPU would stall it.
        sigmas = torch.tensor(spec.sigmas, dtype=torch.float32)
        self._solving = solver.sampler(
            x, sigmas, solver.noise_source(latent.shape, spec.seed, sigmas, device)
        )
        self._end = spec.sigmas[-1]
        last = max(self._end, table.sigma_min)
        self._ends = table.timestep_at(spec.sigmas[0]), table.timestep_at(last)
        self._resume(None)

    def next_step(self) -> Step | None:
        return self._step

    def advance(self, prediction: Tensor) -> None:
        if self._step is None:
            raise RuntimeError("the sampling is done: no step is left")
        self._done += 1
        denoised = self.estimate(prediction)
        if self._interval != self._denoised_interval:
            self._denoised, self._denoised_interval = denoised, self._interval
        self._resume(denoised)

    def estimate(self, prediction: Tensor) -> Tensor:
        return self._mask.after(prediction) if self._mask else prediction

    @property
    def result(self) -> Tensor:
        if self._result is None:
            raise RuntimeError(
                f"the sampling is not done: {self._done} of {len(self.evaluations)} evaluations"
            )
        return self._result

    @property
    def denoised(self) -> Tensor:
        return self.result if self._denoised is None else self._denoised

    def _resume(self, denoised: Tensor | None) -> None:
        try:
            query = next(self._solving) if denoised is None else self._solving.send(denoised)
        except StopIteration as finished:
            self._step = None
            self._result = self._table.path.finished(finished.value, self._end)
            return
        sigma = self.evaluations[self._done].sigma
        self._mask = self._mask_at(sigma)
        x = self._mask.before(query.x, sigma) if self._mask else query.x
        scaled = scale_model_input(x, sigma, self._table.parametrisation).to(self._dtype)
        self._step = Step(x, scaled, self._levels[self._done], self._timesteps[self._done])
        self._interval = query.step

    def _mask_at(self, sigma: float) -> LatentMask | None:
        """Returns the mask at a noise level; a gradual mask opens step by step."""
        first, last = self._ends
        if self._whole_mask is None or not self._gradual or first == last:
            return self._whole_mask
        rest = (self._table.timestep_at(sigma) - last) / (first - last)
        return self._whole_mask.opened(rest, self._gradual)


def _rows(values: Sequence[float], latent: Tensor) -> Sequence[Tensor]:
    """Returns float64 [B] for each value, on the latent's device."""
    rows = torch.tensor(values, dtype=torch.float64).unsqueeze(1).repeat(1, len(latent))
    return to_device(rows, latent.device).unbind()
