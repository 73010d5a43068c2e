"""Holds a runner's devices: their engine, the resources shared by jobs, and their statistics.
Importing this module loads torch.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable
from contextlib import ExitStack

import torch

from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.devices import AUTO, check_present, parse_link, threads_for
from katz_graph.core.phases import Phase, Phases
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.planning import Choices, preload
from katz_graph.executor.start import start_workers
from katz_graph.executor.templates.budget import parse_template_place
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.files.folders import Folders
from katz_graph.host.own_changes import own_changes
from katz_graph.host.process_aspects import THREADS
from katz_graph.host.process_state import ProcessState
from katz_graph.ir.device import NetworkLink
from katz_graph.packs import Registry
from katz_graph.planner.changes import parse_places
from katz_graph.settings.environment import TEMPLATES, Settings
from katz_graph.web.events import JobEvent
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner.caches import Caches
from katz_graph.web.runner.limits import limited
from katz_graph.web.runner.plans import Plans
from katz_graph.web.runner.runs import RunnerDevices, Runs
from katz_graph.web.runner.stats import DeviceFigures
from katz_graph.web.runner.uncommitted_files import UncommittedFiles
from katz_graph.web.runner_client.facts import DeviceFacts, Stats


class Devices:
    """Forks a worker for each requested device that is still available, from the fork server of
    `early_start`. Raises KatzError with one line if a worker cannot be started. Calls
    `request_replacement(why, devices)` when devices are permanently lost; the server then replaces
    this process.
    """

    def __init__(
        self,
        start: RunnerStart,
        settings: Settings,
        early_start: EarlyStart,
        request_replacement: Callable[..., None],
        phases: Phases,
    ) -> None:
        options = start.options
        self._options, self._request_replacement, self.torch = (
            options,
            request_replacement,
            torch.__version__,
        )
        asked = options.device_list()
        devices = asked.without(start.excluded)
        check_present(devices)
        self._text = devices.text
        link = parse_link(options.link)
        pins, lost = parse_places(options.place, asked.names), frozenset(start.excluded)
        self.choices = Choices(pins, allowed_names(options.allow), lane=options.lane, lost=lost)
        threads = threads_for(asked, options.threads)
        if any(choice.device == "cpu" for choice in devices.choices):
            # one torch thread per job thread: the processors are for the device workers
            with own_changes.changing(THREADS):
                torch.set_num_threads(1)
        self._caches = Caches(ResultCache.parse(options.cache or "classic", options.jobs_running))
        packs = tuple(str(folder.absolute()) for folder in settings.packs)
        like = WorkerConfig(
            threads=threads,
            packs=packs,
            model_bytes=options.model_bytes,
            lora_bytes=options.lora_bytes,
            cuda_graphs=options.cuda_graphs,
            report_evictions=True,
            control_net_bytes=options.control_net_bytes,
            policy=options.control_net_policy,
            shared_rows=options.rows,
            templates=parse_template_place(
                settings.cache / TEMPLATES, options.template_gb, options.store_link
            ),
        )
        with ExitStack() as opened:
            given = None if link is None else NetworkLink(*link)
            preload(CostStore(settings.cache).has_formulas)
            started = start_workers(
                devices,
                like,
                _print,
                self.choices,
                settings.cache,
                given,
                options.spare,
                early_start,
                options.dtype or AUTO,
                phases,
                measures_later=True,
            )
            self._engine = opened.enter_context(started)
            self._engine.fills_templates = True
            self._cluster = self._engine.cluster
            self._cluster.on_failed = lambda error: request_replacement(str(error), error.devices)
            self._figures = opened.enter_context(contextlib.closing(DeviceFigures(self._cluster)))
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Ends the workers."""
        self._opened.close()

    def runs(
        self,
        registry: Registry,
        folders: Folders,
        emit: Callable[[JobEvent], None],
        unkept: UncommittedFiles,
        process: ProcessState,
    ) -> Runs:
        """Creates the `Runs` of these devices. `folders` are those that nodes see."""
        types, shown = limited(registry, self._options.limits), self._options.limits.shown
        place = RunnerDevices(
            self._engine,
            types,
            folders,
            self._caches,
            self._text,
            self._options.previews,
            shown,
            process,
            self._options.rows,
        )
        return Runs(place, emit, unkept, self._request_replacement)

    def plans(self, registry: Registry, folders: Folders, process: ProcessState) -> Plans:
        """Creates the `Plans` of these devices, and closes them with the devices."""
        plans = Plans(
            self._engine,
            limited(registry, self._options.limits),
            folders,
            process,
            self._options.stop_seconds,
            self._request_replacement,
        )
        self._opened.callback(plans.close)
        return plans

    def stats(self) -> Stats:
        similar = self._engine.similar.counts
        return Stats(
            self._figures.devices(),
            len(self._caches),
            self._cluster.losses.total(),
            similar_hits=similar.hits,
            similar_misses=similar.misses,
            similar_evaluations_saved=similar.evaluations_saved,
            similar_evictions=similar.evictions,
            similar_pictures=similar.entries,
            similar_bytes=similar.bytes,
        )

    def facts(self) -> tuple[DeviceFacts, ...]:
        """Describes the devices in the operator's order."""
        return tuple(
            DeviceFacts(one.name, one.device, _title(one.device))
            for one in self._cluster.assignments.values()
        )

    def phases(self) -> list[Phase]:
        """Returns the start phases of the workers on this host."""
        return self._cluster.phases()

    def workers(self) -> dict[str, int | None]:
        """Returns process ids by device, spares included."""
        return dict(self._cluster.pids())


def _title(device: str) -> str:
    return (
        torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else platform.processor() or "CPU"
    )


def _print(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
