"""Compiles step regions and has workers carry them out, and what else needs a model. Must not know
where workers are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor

from katz_graph.context import Context
from katz_graph.devices import AUTO, number_format
from katz_graph.events import Planned, Sampled, Span, StageDone, Timeline
from katz_graph.executor.planning import check_reachable, plan_region
from katz_graph.executor.worker.timing import Timing
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.ir.values import TextEncoding
from katz_graph.models.costs.counts import Counts
from katz_graph.models.families.shared.stages import TEXT, VAE_DECODE, VAE_ENCODE
from katz_graph.planner.queries import switches
from katz_graph.recipe import Encoding, Tile, UpscaleModelRecipe, VaeRecipe
from katz_graph.wires import LatentSamples


@dataclass(frozen=True, slots=True)
class Outcome:
    """Holds the result of a request: two latents [B, C, h, w], unscaled, the second as denoised
    when the last step began; times by device.
    """

    samples: Tensor
    denoised: Tensor
    timings: Mapping[str, Timing]
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Called:
    """Holds the result of one unit on a worker, its start on the clock of `time.perf_counter`, and
    its seconds.
    """

    value: Any
    start: float
    seconds: float


class Workers(Protocol):
    """Carries out programs."""

    @property
    def devices(self) -> tuple[Device, ...]: ...

    @property
    def links(self) -> Mapping[tuple[str, str], NetworkLink]: ...

    def run(self, program: Program, context: Context, measure: bool = False) -> Outcome:
        """Carries out a fully compiled program; `measure`: times every call by itself."""

    def call(self, device: str, what: str, *arguments: Any, context: Context | None = None) -> Called:
        """Calls one of `services` on a device, for a run that may be cancelled: what is under way
        then goes on, and its result is dropped.
        """

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Choices:
    """Holds the user's choices about plans: where stages may run, which approximations are allowed,
    whether equal stages run as one call (None: the faster), and how many devices besides those of
    the ControlNets one request uses (None: all). `gone`: devices that pins may name and that there
    are no longer.
    """

    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    batching: bool | None = None
    lane: int | None = None
    gone: frozenset[str] = frozenset()

    @property
    def reachable(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the pins, without devices that are gone."""
        left = {stage: tuple(device for device in devices if device not in self.gone) for stage, devices in self.pins.items()}
        return {stage: devices for stage, devices in left.items() if devices}

    @property
    def stranded(self) -> Mapping[str, tuple[str, ...]]:
        """Returns the stages whose devices are all gone, with these devices."""
        return {stage: devices for stage, devices in self.pins.items() if self.gone.issuperset(devices)}


class DeviceEngine:
    """Implements `katz_graph.context.Engine`. `close` it, or use it in a `with` statement."""

    def __init__(self, workers: Workers, choices: Choices | None = None, counts: Counts | None = None) -> None:
        self.workers = workers
        self.choices = choices or Choices()
        self.counts = counts or Counts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers after the units that run."""
        self.workers.close()

    @property
    def device(self) -> Device:
        return self.workers.devices[0]

    def plan(self, region: Region, after: str = "emit") -> Program:
        """Compiles a region for this engine's devices."""
        return self._planned(region, self._target(), after)

    def _target(self) -> Target:
        choices = self.choices
        return Target(self.workers.devices, self.workers.links, choices.reachable, choices.allowed, choices.batching)

    def _planned(self, region: Region, target: Target, after: str = "emit") -> Program:
        """Compiles a region. RunError for a stage whose devices are gone."""
        program = plan_region(region, target, self.counts, after)
        check_reachable((operation.stage for operation in (*region.operations, *program.before)), self.choices.stranded)
        return program

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        return self._carried_out(region, self.plan(region), context)

    def _carried_out(self, region: Region, program: Program, context: Context) -> tuple[LatentSamples, LatentSamples]:
        context.report(Planned(region.name, program))
        outcome = self.workers.run(program, context)
        self._note_switches(program, outcome.timings)
        own = outcome.timings[program.owner]
        context.report(Sampled(region.name, program, own.load, own.prepare, own.denoise, outcome.attempts))
        spans = (span for timing in outcome.timings.values() for span in timing.spans)
        context.report(Timeline(region.name, tuple(spans)))
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return {**latent, "samples": outcome.samples}, {**latent, "samples": outcome.denoised}

    def _note_switches(self, program: Program, timings: Mapping[str, Timing]) -> None:
        known = switches(program)
        for device, timing in timings.items():
            if timing.switches:
                found = {name: known[name] for name in timing.switches}
                self._note(device, {(one.key, one.loras): [timing.switches[name]] for name, one in found.items()})

    def _note(self, device: str, samples: Mapping[tuple[str, int], Sequence[float]]) -> None:
        """Lets later plans know what calls took, by cost key and members."""

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        made: TextEncoding = self._call(TEXT.name, "encode_text", context, encoding).value
        return TextEncoding(made.hidden.clone(), None if made.pooled is None else made.pooled.clone())

    def encode_image(self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        return self._vae(VAE_ENCODE.name, "encode_image", context, vae, pixels, tile)

    def decode_latent(self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None) -> Tensor:
        return self._vae(VAE_DECODE.name, "decode_latent", context, vae, samples, tile)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        return cast(Tensor, self._call("upscale", "upscale", context, model, picture).value)

    def _vae(self, stage: str, what: str, context: Context, *arguments: Any) -> Tensor:
        called = self._call(stage, what, context, *arguments)
        result, notes = called.value
        for note in notes:
            context.warn(f"{stage.replace('_', ' ')}: {note}")
        return cast(Tensor, result)

    def _call(self, stage: str, what: str, context: Context, *arguments: Any) -> Called:
        """Calls a service on the device that the stage is pinned to, else on the first."""
        check_reachable((stage,), self.choices.stranded)
        device = self.choices.reachable.get(stage, (self.device.name,))[0]
        called = self.workers.call(device, what, *arguments, context=context)
        span = Span(device, stage.replace("_", " "), called.start, called.seconds)
        context.report(StageDone(stage, span))
        return called


def dtype_for(devices: Iterable[str], wanted: str = AUTO) -> torch.dtype:
    """Returns the torch dtype of `number_format`."""
    dtype: torch.dtype = getattr(torch, number_format(devices, wanted))
    return dtype
