"""Compiles step regions, and runs them and all other model calls on workers. A worker is a separate
process, or a thread of this one.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor

from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.errors import RunError
from katz_graph.core.events import Planned, Sampled, Span, StageDone
from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.phases import Phases
from katz_graph.core.recipe import (
    ClipRecipe,
    ControlNetRecipe,
    Encoding,
    ModelRecipe,
    TextRequest,
    Tile,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.calls.batching import mapped
from katz_graph.executor.cluster.autoscaler import Autoscaler
from katz_graph.executor.cluster.driver import Cluster
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.cluster.requests import CallResult, NotSerializable
from katz_graph.executor.cluster.router import Lease, Router
from katz_graph.executor.cluster.worker_handle import PATIENCE, WorkerPatience
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.launch.fork_server import ForkServer, entry_for
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.measure.links import known_links
from katz_graph.executor.measure.lora_levels import LoraLevels
from katz_graph.executor.measure.stages import StageTime, profile_region
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.measure.survey import assume, survey
from katz_graph.executor.messages import Timing
from katz_graph.executor.planning import Choices, check_reachable, plan_region
from katz_graph.executor.similar_starts import NO_TABLE, ChosenStart, SimilarStarts, in_full
from katz_graph.executor.template_offers import TemplateOffers, filling, offers_of
from katz_graph.executor.turns.affinity import Claim, claim_seats
from katz_graph.executor.turns.due_lock import DueLock
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.changes import PlanChanges
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.provenance import ASYNC_LORA, CACHED_EDIT, SIMILAR_START, lora_bound
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import OfferedTemplate
from katz_graph.ir.values import TextEncoding
from katz_graph.models.costs.counts import Counts
from katz_graph.models.families.shared.stages import TEXT, VAE_DECODE, VAE_ENCODE
from katz_graph.node.types import Context
from katz_graph.planner.changes import changed
from katz_graph.planner.queries import opaque_functions, switches
from katz_graph.planner.region import as_given
from katz_graph.planner.template import TemplateRequest

if TYPE_CHECKING:
    from katz_graph.executor.launch.in_process import InProcess
    from katz_graph.executor.worker.models import DeviceModels

MODELS = (ModelRecipe, ClipRecipe, VaeRecipe, ControlNetRecipe, UpscaleModelRecipe)
MAX_EVALUATIONS = 1024  # keys with measured seconds
UNLOADING = 5.0  # maximum seconds to wait for workers to unload their models
DRIVER = "{}@driver"
"""Names the device of an extra worker in this process."""


class DeviceEngine:
    """Implements `katz_graph.node.types.Engine`. Must be closed, or used in a `with` statement.

    Starts a worker for each config, by its launcher in `launchers` (by device name) or as a
    process, and measures the planner's costs. Regions that cannot be serialized, because a pack put
    functions on a model, run in this process, if need be on an extra worker.

    `cache` stores measurements; `link` replaces the measurement of all links; `spares`: a loaded
    worker waits to replace a lost one; `early_start`: the fork server of this host's workers,
    already loading; `phases` receives the phases of the start. `measures_later`: plans with rates
    assumed for unknown devices until `measure` is called. Raises RunError if a worker does not
    start, after closing all.
    """

    def __init__(
        self,
        configs: Sequence[WorkerConfig],
        choices: Choices | None = None,
        cache: Path | None = None,
        link: NetworkLink | None = None,
        spares: bool = False,
        launchers: Mapping[str, Launcher] | None = None,
        network: WorkerNetwork | None = None,
        patience: WorkerPatience = PATIENCE,
        early_start: EarlyStart | None = None,
        phases: Phases | None = None,
        measures_later: bool = False,
    ) -> None:
        phases = phases or Phases("engine")
        self._names = names = tuple(one.name for one in configs)  # of the configured workers
        self.choices = choices or Choices()
        self._store = CostStore(cache)
        self.counts = Counts(self._store)
        self.lora_levels = LoraLevels(self._store)
        self._starting, self._planning = threading.Lock(), DueLock()
        # by device and key of evaluations: the measured seconds (`EvaluationRun.seconds`)
        self._evaluations: dict[tuple[str, str], tuple[float, ...]] = {}
        self.templates: TemplateOffers | None = offers_of(configs[0])
        self.fills_templates = False  # after requests that would have read them
        self.similar = SimilarStarts(self._store, str(configs[0].dtype).removeprefix("torch."))
        self._router = Router(
            names,
            self.choices.reachable,
            self.choices.lane,
            time.monotonic,
            bool(self.choices.lost),
        )
        configs, claimed = _seated(configs, launchers, early_start)
        self.opened = ExitStack()  # closed after the workers
        self.opened.push(claimed)
        launchers = launchers or self._launchers(configs, early_start)
        self.cluster = Cluster(
            configs,
            launchers,
            network or WorkerNetwork(names),
            spares,
            patience,
            self._router.lost,
        )
        self._autoscaler = Autoscaler(self._router, self.cluster)
        try:
            phases.end("prepare the workers")
            self.cluster.start()
            phases.end("wait for the workers")
            self.places = (assume if measures_later else survey)(names, self._ask, self._store)
            self._learn()
            phases.end("measure the devices")
            given = {pair: link for pair in itertools.permutations(names, 2) if link is not None}
            self.cluster.links = given or self.measured_links()
            phases.end("measure the links")
            # not waited for: takes seconds, while the first job is planned and its files are read
            self.cluster.call_all("initialise_libraries", 0.0)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops the workers after their current units."""
        self._autoscaler.close()
        if self.templates is not None:
            self.templates.close()
        self.cluster.close()
        self.opened.close()

    def _launchers(
        self, configs: Sequence[WorkerConfig], early_start: EarlyStart | None
    ) -> Mapping[str, Launcher]:
        """Creates launchers of local processes; workers with equal thread counts share a fork
        server.
        """
        servers = {} if early_start is None else {early_start.server.threads: early_start.server}
        for one in configs:
            if one.threads not in servers:
                servers[one.threads] = self.opened.enter_context(ForkServer(one.threads))
        return {one.name: Spawn(servers[one.threads], entry_for(one.device)) for one in configs}

    # inputs of the planner

    @property
    def device(self) -> Device:
        return self.cluster.devices[0]

    def measure(self, again: bool = False) -> None:
        """Updates the rates of the devices, from the store or by measuring."""
        with self._starting:
            self.places = survey(tuple(self.cluster.assignments), self._ask, self._store, again)
            self._learn()

    def _ask(self, *asked: Any) -> Any:
        return self.cluster.call(*asked).value

    def _learn(self) -> None:
        """Passes the store's measurements to the planner. Workers on the same device share its
        memory equally, unless each has a configured budget.
        """
        found = {place.name: place.device(self._store) for place in self.places}
        self.cluster.devices = tuple(
            replace(one, memory_bytes=self._room(name, found), room_bytes=one.memory_bytes)
            for name, one in found.items()
        )

    def _room(self, name: str, found: Mapping[str, Device]) -> float:
        if self.cluster.is_in_process(name):
            return math.inf  # its plans have no other device to use instead
        if self.cluster.assignments[name].model_bytes is not None:
            return found[name].memory_bytes
        sharing = [other for other in self._names if self._seat(other) == self._seat(name)]
        return min(found[other].memory_bytes for other in sharing) / len(sharing)

    def _seat(self, name: str) -> tuple[str, str]:
        """Returns a worker's host, and torch's name for its device there."""
        host = next(place.host for place in self.places if place.name == name)
        return host, self.cluster.assignments[name].device

    def measured_links(self, again: bool = False) -> Mapping[tuple[str, str], NetworkLink]:
        """Measures the links. Shared-memory links of this host are measured once, or again if
        `again`.
        """
        return known_links(self.cluster, self._store, again)

    def _note(self, device: str, samples: Mapping[tuple[str, int], Sequence[float]]) -> None:
        """Records call times for later plans, by cost key and number of rows."""
        self._store.record(
            next(place.key for place in self.places if place.name == device), samples
        )
        self._learn()

    # a device of this process

    @property
    def models(self) -> DeviceModels:
        """Returns the models of the worker in this process. Raises RunError if there is none."""
        for name in self.cluster.assignments:
            if self.cluster.is_in_process(name):
                host = cast("InProcess", self.cluster.launchers[name]).host
                assert host is not None  # set since the worker's rates were measured
                return host.models
        raise RunError("this engine has no worker in this process")

    def _target_here(self) -> Target:
        """Returns a planner target with only this process's device. Starts its worker if needed."""
        with self._starting:
            names = [name for name in self.cluster.assignments if self.cluster.is_in_process(name)]
            if not names:
                names = [self._start_here()]
        device = next(device for device in self.cluster.devices if device.name in names)
        return Target((device,), batching=self.choices.batching)

    def _start_here(self) -> str:
        # imports model libraries, which few runs need in this process
        from katz_graph.executor.launch.in_process import InProcess

        first = self.cluster.assignments[self.device.name]
        here = WorkerConfig(DRIVER.format(first.device), first.device, first.threads, first.dtype)
        self.cluster.add(here, InProcess())
        self.places += survey([here.name], self._ask, self._store)
        self._learn()
        return here.name

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that runs may use by default."""
        return self.choices.allowed

    # plans

    def plan(
        self, region: Region, after: str = "emit", changes: PlanChanges | None = None
    ) -> Program:
        """Compiles a region as if it were requested now. `changes` replaces the request's own plan
        changes.
        """
        changes = changes or PlanChanges()
        wanted = self._wanted_template(region, changes)
        if self._why_here(region):
            return self._planned(region, changed(self._target_here(), changes), wanted, after)
        lease = self._router.preview(_chooses(changes))
        return self._leased(region, lease, changes, wanted, after)

    def _why_here(self, region: Region) -> str:
        """Returns why only a device of this process can run a region; empty if the region can be
        serialized, or if all workers are in this process.
        """
        if all(map(self.cluster.is_in_process, self._names)):
            return ""
        functions = opaque_functions(region)
        return f"{', '.join(functions)} cannot be sent to workers" if functions else ""

    def _target(self, lease: Lease) -> Target:
        devices = tuple(device for device in self.cluster.devices if device.name in lease.devices)
        return Target(
            devices, self.cluster.links, lease.pins, self.choices.allowed, self.choices.batching
        )

    def _leased(
        self,
        region: Region,
        lease: Lease,
        changes: PlanChanges,
        wanted: TemplateRequest | str | None,
        after: str = "emit",
    ) -> Program:
        """Compiles a region for the devices of a lease, or for all if the router may prefer
        them. The plan for all usually says how long one device takes, so that another plan is not
        needed.
        """

        def planned(on: Lease) -> Program:
            return self._planned(region, changed(self._target(on), changes), wanted, after)

        wider = self._router.wider(lease)
        if wider is None:
            return planned(lease)
        together = planned(wider)
        alone = None if together.alone is not None else planned(lease)
        if self._router.widened(lease, wider, together, alone):
            return together
        return alone or planned(lease)

    def _planned(
        self,
        region: Region,
        target: Target,
        wanted: TemplateRequest | str | None,
        after: str = "emit",
    ) -> Program:
        """Compiles a region. Raises RunError if all devices of a stage are lost."""
        template: OfferedTemplate | str | None = None
        if isinstance(wanted, str):
            template = wanted
        elif wanted is not None and self.templates is not None:
            template = self.templates.offered(wanted) or "no template of its picture is filled"
        program = plan_region(region, target, self.counts, after, self.lora_levels.level, template)
        check_reachable(
            (operation.stage for operation in (*region.operations, *program.before)),
            self.choices.unplaceable,
        )
        return program

    def _wanted_template(
        self, region: Region, changes: PlanChanges
    ) -> TemplateRequest | str | None:
        """Returns the template that a request may read, or the reason why it has none; None if it
        may read none.
        """
        chosen = changes.allow
        if CACHED_EDIT not in (self.allowed if chosen is None else allowed_names(chosen)):
            return None
        if self.templates is None:
            return "templates are not stored; set --template-gb"
        return self.templates.request(region)

    def profile(
        self, region: Region, context: Context, rows: Sequence[int] = ()
    ) -> list[StageTime]:
        """Measures every stage of a region on every device, alone and with all devices busy, with
        the region's own numbers of rows and with these. Later plans use the times.
        """
        names = (
            [device.name for device in self._target_here().devices]
            if self._why_here(region)
            else self._names
        )
        places = [place for place in self.places if place.name in names]
        measured = profile_region(region, self.cluster, places, self._store, context, rows)
        self._learn()
        return measured

    # requests

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        """Samples on the devices of a lease. May be called from several threads concurrently."""
        with context.waiting():
            samples, denoised = self._sample(self._choose_start(region, context), context)
        return as_given(samples), as_given(denoised)

    def _choose_start(self, region: Region, context: Context) -> ChosenStart:
        """Returns the request to run: from a similar picture, if that is allowed and one is near
        enough.
        """
        if SIMILAR_START not in context.allowed:
            return ChosenStart(region)
        if functions := opaque_functions(region):
            return in_full(region, f"{', '.join(functions)} may depend on the evaluation")
        if lora_bound(context.allowed)[0] and region.begin.inputs["model"].loras:
            return in_full(region, f"its LoRAs may come late ({ASYNC_LORA})")
        chosen = self.similar.begin(region, lambda text: self.encode_text(text, context))
        if chosen.region.similar is not None and chosen.region.similar.why_not == NO_TABLE:
            context.warn(f"sampler {region.name}: {SIMILAR_START}: {NO_TABLE}")
        return chosen

    def _sample(self, chosen: ChosenStart, context: Context) -> tuple[LatentSamples, LatentSamples]:
        region = chosen.region
        if why := self._why_here(region):
            return self._sampled_here(region, context, why)
        turn = self._planning.held(context.due, context.arrival, context.check_cancelled)
        with ExitStack() as planning:
            planning.enter_context(turn)
            changes = context.changes
            wanted = self._wanted_template(region, changes)
            template = None if isinstance(wanted, str) else wanted
            prefix = "" if template is None else template.prefix
            lease = self._router.admit(region, _chooses(changes), prefix)
            completed = False
            try:
                program = self._leased(region, lease, changes, wanted)
                self._autoscaler.apply(self._router.planned(lease, program))
                planning.close()
                sampled = self._carried_out(region, program, context)
                completed = True
                if template is not None and program.template is None:
                    self._fill_later(template, context)
                if not (program.stale or program.deferred_loras or program.template):
                    self.similar.store(chosen, sampled[0]["samples"])
                return sampled
            except NotSerializable as error:
                return self._sampled_here(region, context, str(error))
            finally:
                self._autoscaler.apply(self._router.dismiss(lease, completed))

    def _fill_later(self, request: TemplateRequest, context: Context) -> None:
        """Fills the template that a request would have read, when devices have nothing else."""
        if self.templates is not None and self.fills_templates:
            self.templates.fill_later(request, lambda: self.fill_template(request, context))

    def fill_template(self, request: TemplateRequest, context: Context) -> None:
        """Computes a template's activations on one device, after all requests there."""
        target = Target(self.cluster.devices[:1], batching=self.choices.batching)
        program = plan_region(request.fills, target, self.counts)
        last = RunContext(
            self,
            context.folders,
            context.output_directory,
            types=context.types,
            due=-math.inf,  # as of a request that is late
        )
        self.cluster.run(filling(program, request), last)

    def _sampled_here(
        self, region: Region, context: Context, why: str
    ) -> tuple[LatentSamples, LatentSamples]:
        context.warn(f"sampler {region.name} runs on one device of this process: {why}")
        wanted = self._wanted_template(region, PlanChanges())
        return self._carried_out(
            region, self._planned(region, self._target_here(), wanted), context
        )

    def _carried_out(
        self, region: Region, program: Program, context: Context
    ) -> tuple[LatentSamples, LatentSamples]:
        device = program.sampler_device
        program = replace(
            program,
            runs=tuple(
                replace(run, seconds=self._evaluations.get((device, run.key), run.seconds))
                for run in program.runs
            ),
        )
        context.report(Planned(region.name, program))
        outcome = self.cluster.run(program, context)
        self._note_switches(program, outcome.timings)
        own = outcome.timings[device]
        for key, seconds in own.evaluations.items():
            self._evaluations[device, key] = seconds
        while len(self._evaluations) > MAX_EVALUATIONS:
            self._evaluations.pop(next(iter(self._evaluations)), None)
        activations = self._activations_read(program, outcome.timings.values())
        context.report(
            Sampled(
                region.name,
                program if activations.get("bytes", 1) else _unread(program),
                own.load,
                own.prepare,
                own.denoise,
                outcome.attempts,
                own.arrivals,
                sum((Counter(one.calls) for one in outcome.timings.values()), Counter()),
                activations,
            )
        )
        latent: LatentSamples = region.begin.inputs["latent_image"]
        return {**latent, "samples": outcome.samples}, {**latent, "samples": outcome.denoised}

    def _activations_read(self, program: Program, timings: Iterable[Timing]) -> Mapping[str, float]:
        """Sums what devices read from a program's template, from which later plans learn."""
        if program.template is None or program.template.fills:
            return {}
        reads = [timing.activations for timing in timings]
        found = {
            "bytes": sum(one.bytes for one in reads),
            "seconds": sum(one.seconds for one in reads),
            "waited_seconds": sum(one.waited for one in reads),
        }
        if self.templates is not None:
            self.templates.ran(found["bytes"], found["seconds"])
        return found

    def _note_switches(self, program: Program, timings: Mapping[str, Timing]) -> None:
        known = switches(program)
        for device, timing in timings.items():
            if timing.reads:
                self._note(device, {(key, 0): [took] for key, took in timing.reads.items()})
            if timing.switches:
                found = {name: known[name] for name in timing.switches}
                self._note(
                    device,
                    {(one.key, one.loras): [timing.switches[name]] for name, one in found.items()},
                )

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        made: TextEncoding = self._call(TEXT.name, "encode_text", context, encoding).value
        cloned: TextEncoding = mapped(made, Tensor.clone)
        return cloned

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._vae(VAE_ENCODE.name, "encode_image", context, vae, pixels, tile)

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._vae(VAE_DECODE.name, "decode_latent", context, vae, samples, tile)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        return cast(Tensor, self._call("upscale", "upscale", context, model, picture).value)

    def generate_text(
        self,
        clip: ClipRecipe,
        request: TextRequest,
        context: Context,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> str:
        called = self._call(TEXT.name, "generate_text", context, clip, request, progress=progress)
        return cast(str, called.value)

    def _vae(self, stage: str, what: str, context: Context, *arguments: Any) -> Tensor:
        called = self._call(stage, what, context, *arguments)
        result, notes = called.value
        for note in notes:
            context.warn(f"{stage.replace('_', ' ')}: {note}")
        return cast(Tensor, result)

    def _call(
        self,
        stage: str,
        what: str,
        context: Context,
        *arguments: Any,
        progress: Callable[[int], None] = lambda done: None,
    ) -> CallResult:
        """Calls a service on the device that the stage is pinned to, else on the first device."""
        check_reachable((stage,), self.choices.unplaceable)
        device = self.choices.reachable.get(stage, (self.device.name,))[0]
        with context.waiting():
            called = self.cluster.call(device, what, *arguments, context=context, progress=progress)
        span = Span(
            device,
            stage.replace("_", " "),
            called.start,
            called.seconds,
            kind="stage",
            target=stage,
        )
        context.report(StageDone(stage, span))
        return called

    def prefetch(self, values: Iterable[object], context: Context) -> None:
        """Starts reading the files of recipes among these values, if it is known which device will
        use them.
        """
        recipes = [value for value in values if isinstance(value, MODELS)]
        if recipes and len(self._names) == 1:
            self.cluster.prefetch(self.device.name, recipes, context)

    def run_ended(self, context: Context) -> None:
        """Reports that a run sends no more work: devices stay free for it no longer."""
        self.cluster.run_ended(context)

    def unload(self) -> None:
        """Unloads the models of all workers; to be called when nothing runs. Later requests load
        their models again.

        Returns after at most UNLOADING seconds; slower workers continue. Raises the RunError of a
        worker that failed.
        """
        for name in self.cluster.assignments:
            self._router.lost(name)
        self.cluster.call_all("unload", UNLOADING)


def _unread(program: Program) -> Program:
    """Returns a program as it ran if its template had been removed, or was damaged."""
    assert program.reuse is not None
    why = replace(program.reuse, cached_layers=0, why_not="its template could not be read")
    return replace(program, template=None, reused={}, reuse=why)


def _chooses(changes: PlanChanges) -> bool:
    """Returns whether a request chooses its devices."""
    return bool(changes.devices or changes.place)


def _seated(
    configs: Sequence[WorkerConfig],
    launchers: Mapping[str, Launcher] | None,
    early_start: EarlyStart | None,
) -> tuple[list[WorkerConfig], Claim]:
    """Claims processors for this host's CPU workers, if enough are free. Returns the configs with
    the claimed processors, and the claim.
    """
    here = [launchers is None or isinstance(launchers[one.name], Spawn) for one in configs]
    seats = [
        one.threads if is_here and one.device == "cpu" else 0
        for one, is_here in zip(configs, here, strict=True)
    ]
    claimed = claim_seats(seats) if early_start is None else early_start.claimed
    free = iter(claimed.processors)
    return [
        replace(one, processors=tuple(islice(free, seat)))
        for one, seat in zip(configs, seats, strict=True)
    ], claimed
