"""The engine on one device: compiles step regions, runs them on its worker, and runs VAE calls on the same worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from katz_graph.context import Context, Tile
from katz_graph.events import Busy, Planned
from katz_graph.executor.calibrate import calibrated
from katz_graph.executor.execution import Execution, Timing
from katz_graph.executor.models import Models
from katz_graph.executor.worker import Job, Single, Worker
from katz_graph.models.features import TextEncoding
from katz_graph.models.text_recipe import length
from katz_graph.models.tokens import prompt_length
from katz_graph.planner.compile import Known, compile_region
from katz_graph.planner.count import count_work
from katz_graph.planner.fit import fit
from katz_graph.planner.program import Device, Program
from katz_graph.planner.region import Region
from katz_graph.planner.schedule import decider, sampling_of
from katz_graph.recipe import Encoding, VaeRecipe
from katz_graph.sampling.static import evaluations_of
from katz_graph.upscale.recipe import UpscaleModelRecipe
from katz_graph.wires import LatentSamples


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """`batching` None lets the planner choose; `cache` keeps measured rates."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    batching: bool | None = None
    cache: Path | None = None


@dataclass(slots=True)
class Report:
    """What sampling and the VAE took in this engine's life, for figures that are printed."""

    programs: list[Program] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    vae: float = 0.0


class LocalEngine:
    """One device in this process. `close` it, or use it in a `with` statement."""

    def __init__(self, options: EngineOptions | None = None, models: Models | None = None) -> None:
        self.options = options or EngineOptions()
        self.models = models or Models(self.options.device, self.options.dtype)
        self.report = Report()
        self.device: Device = calibrated(self.options.device, self.models.device, self.models.dtype, self.options.cache)
        self._worker = Worker(self.options.device)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the worker after the unit that runs."""
        self._worker.close()

    def plan(self, region: Region, after: str = "emit") -> Program:
        """Compile a region for this engine's device."""
        return plan_region(region, self.device, self.options.batching, after)

    def submit(self, region: Region, program: Program, context: Context) -> Job:
        """Start sampling; the job's result is the latent [B, C, h, w], unscaled."""
        spec, table = sampling_of(region.begin)
        latent = region.begin.inputs["latent_image"]["samples"]
        return self._worker.submit(Execution(program, spec, table, latent, self.models, context))

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        program = self.plan(region)
        context.report(Planned(region.name, program))
        job = self.submit(region, program, context)
        samples = job.result()
        execution = cast(Execution, job.task)
        timing = execution.timing
        self.report.programs.append(program)
        self.report.timings.append(timing)
        for span in timing.spans:
            context.report(Busy(self.options.device, span.name, region.name, span.start, span.seconds, span.evaluation))
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return {**latent, "samples": samples}, {**latent, "samples": execution.denoised}

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        task = Single(lambda: self.models.encode_text(encoding))
        made: TextEncoding = self._worker.submit(task).result()
        context.report(Busy(self.options.device, "text encoder", "", task.start, task.seconds))
        pooled = None if made.pooled is None else made.pooled.cpu().float().clone()
        return TextEncoding(made.hidden.cpu().float().clone(), pooled)

    def encode_image(self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        return self._vae("VAE encode", lambda: self.models.encode_image(vae, pixels, tile), context)

    def decode_latent(self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        return self._vae("VAE decode", lambda: self.models.decode_latent(vae, samples, tile), context)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        task = Single(lambda: self.models.upscale(model, picture))
        enlarged = self._worker.submit(task).result()
        context.report(Busy(self.options.device, "upscale", "", task.start, task.seconds))
        return cast(Tensor, enlarged)

    def _vae(self, name: str, run: Callable[[], Any], context: Context) -> Tensor:
        task = Single(run)
        result, notes = self._worker.submit(task).result()
        self.report.vae += task.seconds
        context.report(Busy(self.options.device, name, "", task.start, task.seconds))
        for note in notes:
            context.warn(f"{name}: {note}")
        return cast(Tensor, result)


def plan_region(region: Region, device: Device, batching: bool | None = None, after: str = "emit") -> Program:
    """Compile a region for one device without running it."""
    spec, table = sampling_of(region.begin)
    known = Known(
        schedule=evaluations_of(spec),
        decide=decider(spec, table),
        shape=tuple(region.begin.inputs["latent_image"]["samples"].shape),
        count=partial(count_work, value_bytes=device.value_bytes),
        fit=fit,
        length=lambda encoding: length(encoding, prompt_length),
        devices=(device,),
        batching=batching,
    )
    return compile_region(region, known, after)
