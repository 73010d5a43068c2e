"""Runs, plans and profiles workflows for Python programs."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Self

from katz_graph.api.builder import Graph, Paths, as_paths
from katz_graph.api.devices import DeviceSetup, check_options, resolve
from katz_graph.api.prepare import (
    Assignments,
    Changes,
    PreparedRun,
    Source,
    Targets,
    first_seed,
    metadata,
    prepare,
)
from katz_graph.api.progress import listener
from katz_graph.api.result import Plan, Result, pictures_of, plain, values_of
from katz_graph.core.allowed_approximations import made_with
from katz_graph.core.devices import AUTO
from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.events import Event, Listener, Reused, Sampled, Warned
from katz_graph.core.messages import listed
from katz_graph.executor.graph.context import RunContext, writing_nothing
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import GraphResult, run_graph
from katz_graph.host.run_lock import RunLock
from katz_graph.packs import load_registry
from katz_graph.settings.environment import prepare_to_compute
from katz_graph.settings.options import FolderOptions, PlacementOptions

if TYPE_CHECKING:
    from katz_graph.executor.compile_ahead import Counted
    from katz_graph.executor.engine import DeviceEngine
    from katz_graph.executor.measure.lora_levels import LoraProfile
    from katz_graph.executor.measure.similar import SimilarProfile
    from katz_graph.executor.measure.stages import StageTime
    from katz_graph.node.types import Engine as ContextEngine

log = logging.getLogger("katz_graph")


class Engine:
    """Runs workflows. Use it in a `with` statement, or call `close`.

    Thread-safe; several runs may execute concurrently. The options are those of `katz run`. Devices
    start at the first run; if `devices` or `dtype` is None, the first workflow chooses it. `cache`
    selects the results that are cached between runs: `classic`, `lru:N` or `none`.
    `report_evictions` reports evicted models. `say` and `warn` receive lines for the user.
    """

    def __init__(
        self,
        *,
        devices: str | None = None,
        models: Paths = (),
        packs: Paths = (),
        input: str | PathLike[str] | None = None,
        output: str | PathLike[str] | None = None,
        extra_model_paths: Paths = (),
        fetch: str | Iterable[str] = (),
        dtype: str | None = None,
        threads: int | None = None,
        place: str | Iterable[str] = (),
        link: str | None = None,
        allow: str = "",
        model_bytes: int | None = None,
        lora_bytes: int | None = None,
        cuda_graphs: bool = True,
        template_gb: str = "4,32",
        store_link: float | None = None,
        cache: str = "classic",
        report_evictions: bool = False,
        say: Callable[[str], None] = log.info,
        warn: Callable[[str], None] = log.warning,
        tell_evictions: bool | None = None,
    ) -> None:
        if tell_evictions is not None:
            message = "tell_evictions is now report_evictions; the old name will be removed"
            warnings.warn(message, FutureWarning, stacklevel=2)
            report_evictions = tell_evictions
        if "torch" not in sys.modules:  # torch reads the environment on import
            prepare_to_compute()
        places = (place,) if isinstance(place, str) else tuple(place)
        self._options = PlacementOptions(
            devices=devices,
            dtype=dtype,
            threads=threads,
            model_bytes=model_bytes,
            lora_bytes=lora_bytes,
            cuda_graphs=cuda_graphs,
            place=places,
            link=link,
            allow=allow,
            template_gb=template_gb,
            store_link=store_link,
        )
        check_options(self._options)
        self._results = ResultCache.parse(cache)
        self._idle = [self._results]  # caches that no run is using
        self.settings = FolderOptions(
            models=as_paths(models),
            extra_model_paths=as_paths(extra_model_paths),
            packs=as_paths(packs),
            input=None if input is None else Path(input),
            output=None if output is None else Path(output),
            fetch=(fetch,) if isinstance(fetch, str) else tuple(fetch),
        ).settings()
        self.folders = self.settings.folders()
        self._say, self._warn, self._report_evictions = say, warn, report_evictions
        self.types, problems = load_registry(self.settings.packs, self.folders)
        for problem in problems:
            warn(str(problem))
        self._starting, self._pack_lock = threading.Lock(), RunLock()
        self._started_with: tuple[DeviceSetup, DeviceEngine] | None = None
        self._changed = threading.Condition()
        self._running: set[_Run] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Cancels running workflows, waits until they have ended, and stops the devices."""
        with self._changed:
            self._closed = True
        self.cancel()
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
        with self._starting:
            started, self._started_with = self._started_with, None
        if started is not None:
            started[1].close()

    def cancel(self) -> None:
        """Cancels the current runs; each raises Cancelled."""
        with self._changed:
            running = list(self._running)
        for run in running:
            run.cancel()

    def graph(self) -> Graph:
        """Returns an empty graph with this engine's node types and files, for building a
        workflow.
        """
        return Graph(types=self.types, folders=self.folders)

    def run(
        self,
        workflow: Source,
        *,
        seed: int | None = None,
        set: Assignments = (),
        targets: Targets = (),
        progress: Listener | bool | None = None,
        partial: bool = False,
    ) -> Result:
        """Runs the outputs of a workflow, or only `targets`: nodes by id, title or type.

        `seed` sets every seed; `set` changes inputs: `{"5.steps": 30}`. `progress=True` shows a
        progress bar. A function is called with each event (`katz_graph.core.events`) from the
        threads of the run. With `partial`, the run proceeds if at least one target can run, and the
        result's `error` explains the others. InputError, RunError and Cancelled carry the error
        lines of `katz run`.
        """
        with listener(progress) as listen:
            return self._run(_Run(workflow, Changes(seed, set, targets), listen, partial))

    async def arun(
        self,
        workflow: Source,
        *,
        seed: int | None = None,
        set: Assignments = (),
        targets: Targets = (),
        progress: Listener | bool | None = None,
        partial: bool = False,
    ) -> Result:
        """Runs like `run`, but calls `progress` on the event loop. Cancelling the task cancels the
        run.
        """
        loop = asyncio.get_running_loop()
        with listener(progress) as listen:

            def on_event(event: Event) -> None:
                if listen is not None:
                    loop.call_soon_threadsafe(listen, event)

            run = _Run(workflow, Changes(seed, set, targets), on_event, partial)
            try:
                return await asyncio.to_thread(self._run, run)
            except asyncio.CancelledError:
                run.cancel()
                raise

    def plan(
        self,
        workflow: Source,
        *,
        seed: int | None = None,
        set: Assignments = (),
        targets: Targets = (),
        after: str = "emit",
    ) -> Plan:
        """Compiles every sampler that the outputs need, up to the pass `after`.

        Runs no model and starts no device. InputError for an unknown pass.
        """
        from katz_graph.planner.compile import PASSES

        if after not in PASSES:
            raise InputError(f"--after {after}: no such pass; choose one of {', '.join(PASSES)}")
        prepared = self._prepared(workflow, Changes(seed, set, targets), self._warn)
        return self._plan(prepared, resolve(self._options, prepared.workflow.run), after)

    def profile(self, workflow: Source, *, set: Assignments = ()) -> list[StageTime]:
        """Measures every stage of a workflow's samplers on every device, and stores the times for
        planning.

        Each stage is measured alone, and while the other devices run it at the same time.
        """
        from katz_graph.executor.measure.stages import ROWS

        prepared = self._prepared(workflow, Changes(set=set), self._warn)
        setup = resolve(self._options, prepared.workflow.run)
        plan = self._plan(prepared, setup, "expand")
        (_, engine), times = self._started(setup), []
        for program in plan.programs:
            self._say(f"measuring sampler {program.name}")
            times += engine.profile(program.region, self._quiet_context(engine), ROWS)
        return times

    def compile_kernels(
        self,
        workflows: Sequence[Source],
        *,
        architecture: int | None = None,
        set: Assignments = (),
    ) -> Counted:
        """Compiles Triton's kernels for the models of workflows at their sizes into Triton's cache,
        without running a model.

        `architecture`: that of the GPU, such as 90 for sm90, which may be absent; default: that of
        this machine's first GPU. Returns the numbers of compiled and of cached kernels. InputError
        without Triton, if a workflow runs no model, or if there is neither an architecture nor a
        GPU.
        """
        from katz_graph.executor.compile_ahead import StageCalls, compile_ahead, this_architecture
        from katz_graph.executor.worker.config import dtype_for

        architecture = architecture or this_architecture()
        calls = []
        for workflow in workflows:
            prepared = self._prepared(workflow, Changes(set=set), self._warn)
            collector = StageCalls.collector()
            self._run_unwritten(prepared, collector)
            if not collector.calls:
                raise InputError(
                    f"{prepared.named}this workflow runs no model, so there are no kernels to "
                    "compile"
                )
            dtype = dtype_for(
                ["cuda"], self._options.dtype or prepared.workflow.run.get("dtype") or AUTO
            )
            calls += [(call, dtype) for call in collector.calls]
        return compile_ahead(calls, architecture)

    def profile_loras(
        self,
        workflow: Source,
        *,
        set: Sequence[str] = (),
        vary: Sequence[str] = (),
        seeds: int = 4,
    ) -> list[LoraProfile]:
        """Measures how many first steps each LoRA of a workflow's samplers may miss.

        For several seeds, samples with only this LoRA and without any, and compares the latents
        after every step. `vary`: changes to the workflow (`NODE.INPUT=VALUE`), such as other
        prompts; the profile is repeated with each. Later plans with `allow="async-lora"` use the
        results. InputError for several devices, or if no sampler with several steps has a LoRA.
        """
        from katz_graph.executor.measure.loras import LoraProfiler

        variations = [
            self._prepared(workflow, Changes(set=(*set, *change)), self._warn)
            for change in ((), *((one,) for one in vary))
        ]
        setup = resolve(self._options, variations[0].workflow.run)
        if setup.devices.several:
            raise InputError("--devices: choose one device to profile LoRAs")
        setup, engine = self._started(setup)
        profiler = LoraProfiler(engine, seeds, self._say)
        with setup.driving():
            for prepared in variations:
                self._run_unwritten(prepared, profiler)
        if not profiler.profiles:
            raise InputError(
                f"{variations[0].named}no sampler of this workflow has both a LoRA and several "
                "steps"
            )
        # store the sampler that needs the LoRA earliest last: it overrides others of equal noise
        for profile in sorted(profiler.profiles, key=lambda profile: profile.level):
            engine.lora_levels.keep(profile)
        return profiler.profiles

    def profile_similar(
        self, workflow: Source, *, set: Sequence[str] = (), vary: Sequence[str] = ()
    ) -> list[SimilarProfile]:
        """Measures from the pictures of how similar prompts a workflow's samplers may begin, and at
        which step. Later runs with `allow="similar-start"` use the results.

        `vary`: changes to the workflow (`NODE.INPUT=VALUE`), one for each further prompt.
        InputError if no sampler may begin from another request's picture.
        """
        from katz_graph.executor.measure.similar import SimilarProfiler

        variations = [
            self._prepared(workflow, Changes(set=(*set, *change)), self._warn)
            for change in ((), *((one,) for one in vary))
        ]
        setup, engine = self._started(resolve(self._options, variations[0].workflow.run))
        profiler = SimilarProfiler(engine, self._say)
        with setup.driving():
            for prepared in variations:
                self._run_unwritten(prepared, profiler)
            profiles = profiler.measure(self._quiet_context(engine))
        if not profiles:
            raise InputError(
                f"{variations[0].named}no sampler of this workflow may begin from another picture"
            )
        for profile in profiles:
            engine.similar.keep(profile.scale, profile.table)
        return profiles

    def fill_templates(self, workflow: Source, *, set: Assignments = ()) -> list[str]:
        """Fills the templates of a workflow's samplers that edit a part of a picture, for later
        runs with `allow="cached-edit"`. Returns the names of the filled ones. RunError if one is
        not stored, such as on a full disk.
        """
        from katz_graph.executor.template_filler import TemplateFiller

        prepared = self._prepared(workflow, Changes(set=set), self._warn)
        setup, engine = self._started(resolve(self._options, prepared.workflow.run))
        several = len(self._plan(prepared, setup, "expand")) > 1
        filler = TemplateFiller(engine, self._say, samples_all=several)
        with setup.driving():
            self._run_unwritten(prepared, filler)
        return filler.filled

    def _plan(self, prepared: PreparedRun, setup: DeviceSetup, after: str) -> Plan:
        from katz_graph.executor.planning import region_planner
        from katz_graph.executor.rehearsal import PlanningEngine

        machine, store = setup.estimate(self.settings)
        link = setup.templates(self.settings).bytes_per_second
        planner = region_planner(machine, store, after, link)
        engine = PlanningEngine(machine.devices[0], planner)
        self._run_unwritten(prepared, engine)
        if not engine.programs:
            raise InputError(
                f"{prepared.named}this workflow has no sampler, so there is nothing to plan"
            )
        return Plan(tuple(engine.programs))

    def _run_unwritten(self, prepared: PreparedRun, engine: ContextEngine) -> None:
        """Runs the targets and their dependencies on an engine, except nodes that write files."""
        wanted: list[str] = []
        for target in prepared.targets:
            call = prepared.graph.nodes[target]
            writes = self.types[call.type].is_output
            wanted += [link.node for _, link in call.links()] if writes else [target]
        context = self._quiet_context(engine)
        with writing_nothing(context):
            found = run_graph(prepared.graph, context, ResultCache("none"), wanted)
        found.raise_failures()

    def _prepared(
        self, workflow: Source, changes: Changes, warn: Callable[[str], None], partial: bool = False
    ) -> PreparedRun:
        prepared = prepare(workflow, changes, self.types, self.folders, self._say, warn)
        if prepared.problems and not (partial and prepared.targets):
            raise InputError("\n".join(prepared.problems))
        return prepared

    def _started(self, setup: DeviceSetup) -> tuple[DeviceSetup, DeviceEngine]:
        """Starts devices on the first call, and returns the same ones on later calls."""
        with self._starting:
            if self._closed:
                raise InputError("this engine is closed; open another one")
            if self._started_with is None:
                self._started_with = (
                    setup,
                    setup.start(self.settings, self._say, self._report_evictions),
                )
            return self._started_with

    def _run(self, run: _Run) -> Result:
        began, warnings = time.perf_counter(), list[str]()

        def warn(line: str) -> None:
            warnings.append(line)
            self._warn(line)

        with self._under_way(run) as cache:
            prepared = self._prepared(run.source, run.changes, warn, run.partial)
            wanted = resolve(self._options, prepared.workflow.run)
            setup, engine = self._started(wanted)
            if wanted != setup:
                warn(
                    f"{prepared.named}its run options are ignored, since this engine's options "
                    "differ"
                )
            context = self._context(run, engine, setup, prepared, warn)
            if prepared.problems:
                running = listed(prepared.targets)
                warn(f"some outputs are refused (reasons at the end); running: node {running}")
            found, error = GraphResult({}), None
            try:
                with setup.driving():
                    found = run_graph(
                        prepared.graph, context, cache, prepared.targets, context.listener
                    )
                found.raise_failures()
            except KatzError as failure:
                if not run.partial:
                    raise
                error = failure
            finally:
                engine.run_ended(context)
                self._pack_lock.ended(context.arrival)
        measured = context.measured
        return Result(
            {target: tuple(map(plain, outputs)) for target, outputs in found.outputs.items()},
            tuple(values_of(found, prepared.graph, self.types, "LATENT")),
            tuple(context.files),
            {"total": time.perf_counter() - began, **measured.seconds},
            measured.calls,
            measured.activations,
            Plan(tuple(measured.programs)),
            measured.provenance.approximations,
            first_seed(prepared.graph),
            tuple(warnings),
            prepared.error(error),
            tuple(pictures_of(found, prepared.graph, self.types, context)),
        )

    def _context(
        self,
        run: _Run,
        engine: DeviceEngine,
        setup: DeviceSetup,
        prepared: PreparedRun,
        warn: Callable[[str], None],
    ) -> RunContext:
        devices, dtype = setup.devices.text, engine.device.dtype
        texts = metadata(prepared.workflow, self.types) | {"katz": made_with(devices, dtype)}

        def listen(event: Event) -> None:
            match event:
                case Warned(message=message):
                    warn(message)
                case Sampled() | Reused():
                    texts["katz"] = made_with(devices, dtype, context.measured.provenance)
            if run.progress is not None:
                run.progress(event)

        context = RunContext(
            engine,
            self.folders,
            self.settings.output,
            texts,
            listen,
            types=self.types,
            pack_lock=self._pack_lock,
        )
        run.attach(context)
        return context

    def _quiet_context(self, engine: ContextEngine) -> RunContext:
        """Returns a context for plans and profiles, which reports only warnings."""

        def listen(event: Event) -> None:
            if isinstance(event, Warned):
                self._warn(event.message)

        return RunContext(
            engine, self.folders, self.settings.output, listener=listen, types=self.types
        )

    @contextmanager
    def _under_way(self, run: _Run) -> Iterator[ResultCache]:
        """Lends a cache to a run; registers the run so that `close` waits for it.

        The caches share their results. Each has a separate history and separate node objects.
        """
        with self._changed:
            self._running.add(run)
            cache = self._idle.pop() if self._idle else self._results.fork()
        try:
            with cache.under_way():
                yield cache
        finally:
            with self._changed:
                self._running.discard(run)
                self._idle.append(cache)
                self._changed.notify_all()


open = Engine


@dataclass(slots=True, eq=False)
class _Run:
    """One call of `run`. Any thread may cancel it, even before it has a context."""

    source: Source
    changes: Changes
    progress: Listener | None
    partial: bool
    context: RunContext | None = None
    cancelled: bool = False

    def attach(self, context: RunContext) -> None:
        self.context = context
        if self.cancelled:
            context.cancel()

    def cancel(self) -> None:
        self.cancelled = True
        if self.context is not None:
            self.context.cancel()
