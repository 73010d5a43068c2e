"""Starts the devices of a run, in this process or as workers, or estimates their speed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.devices import (
    AUTO,
    DeviceList,
    check_dtype,
    check_present,
    parse_link,
    threads_for,
)
from katz_graph.core.errors import InputError
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.templates.budget import TemplatePlace, parse_template_place
from katz_graph.host.garbage import COLLECTION_THRESHOLD_OBJECTS, imports_are_done
from katz_graph.planner.changes import parse_places
from katz_graph.settings.environment import TEMPLATES, Settings
from katz_graph.settings.options import PlacementOptions

if TYPE_CHECKING:
    from katz_graph.executor.engine import DeviceEngine
    from katz_graph.executor.measure.store import CostStore
    from katz_graph.executor.planning import Choices
    from katz_graph.executor.worker.config import WorkerConfig
    from katz_graph.ir.device import NetworkLink, Target

RUN_OPTIONS: dict[str, type] = {
    "seed": int,
    "devices": str,
    "dtype": str,
    "allow": str,
    "batching": bool,
}


@dataclass(frozen=True, slots=True)
class DeviceSetup:
    """Names devices and constrains plans for them: pinned stages, allowed approximations, and
    batching.
    """

    options: PlacementOptions
    devices: DeviceList
    dtype: str
    pins: Mapping[str, tuple[str, ...]]
    allowed: frozenset[str]
    batching: bool | None
    """Whether equal stages run as one batched call; None: whichever is faster."""

    @property
    def threads(self) -> int:
        return threads_for(self.devices, self.options.threads)

    def start(
        self, settings: Settings, say: Callable[[str], None], report_evictions: bool
    ) -> DeviceEngine:
        """Starts the devices. The caller closes the engine. RunError if a worker does not start.

        `report_evictions`: report evicted models through `say`.
        """
        start = self._start_workers if self.devices.several else self._start_here
        engine = start(settings, say, report_evictions)
        if (
            gc.get_threshold()[0] == COLLECTION_THRESHOLD_OBJECTS
        ):  # embedding programs configure the collector themselves
            imports_are_done()
        return engine

    def _start_here(
        self, settings: Settings, say: Callable[[str], None], report_evictions: bool
    ) -> DeviceEngine:
        from katz_graph.executor.start import assigned, start_here

        (choice,) = self.devices.choices
        (config,) = assigned({choice.name: choice.device}, self._config(settings), self.dtype)
        engine = start_here(config, self._choices(), settings.cache)
        if report_evictions:
            engine.models.say = say
        return engine

    def _start_workers(
        self, settings: Settings, say: Callable[[str], None], report_evictions: bool
    ) -> DeviceEngine:
        with ExitStack() as opened:
            # launch workers while torch is being imported here
            early_start = opened.enter_context(EarlyStart(self.devices, self.threads))
            from katz_graph.executor.start import start_workers

            like = self._config(settings, report_evictions)
            engine = start_workers(
                self.devices,
                like,
                say,
                self._choices(),
                settings.cache,
                self._link(),
                early_start=early_start,
                dtype=self.dtype,
            )
            engine.opened.push(opened.pop_all())
            return engine

    def _config(self, settings: Settings, report_evictions: bool = False) -> WorkerConfig:
        from katz_graph.executor.worker.config import WorkerConfig

        packs = tuple(str(folder.absolute()) for folder in settings.packs)
        return WorkerConfig(
            threads=self.threads,
            packs=packs,
            model_bytes=self.options.model_bytes,
            lora_bytes=self.options.lora_bytes,
            cuda_graphs=self.options.cuda_graphs,
            report_evictions=report_evictions,
            templates=self.templates(settings),
        )

    def templates(self, settings: Settings) -> TemplatePlace:
        """Returns the store of templates. Raises InputError for options that are not possible."""
        given = self.options.template_gb, self.options.store_link
        return parse_template_place(settings.cache / TEMPLATES, *given)

    def estimate(self, settings: Settings) -> tuple[Target, CostStore]:
        """Estimates devices and links without starting a worker.

        Measures devices without stored results, one at a time. InputError for a Ray cluster.
        """
        from katz_graph.executor.measure.survey import estimated
        from katz_graph.executor.worker.config import dtype_for

        if self.devices.launcher == "ray":
            raise InputError(
                "--devices ray: a cluster's devices are known only after joining it; use katz "
                "run, or name devices, as in cpu*2"
            )
        wanted = {choice.name: choice.device for choice in self.devices.choices}
        with torch_threads(self.threads):
            return estimated(
                wanted,
                dtype_for(wanted.values(), self.dtype),
                settings.cache,
                self._link(),
                self._choices(),
            )

    def driving(self) -> AbstractContextManager[None]:
        """Limits torch on the calling thread to one thread while a CPU device computes in this
        process.

        OpenMP gives each thread that uses several cores its own pool. Once the pools have more
        threads than there are processors, every pool sleeps at every barrier, and small models take
        four times as long.
        """
        here = not self.devices.several and self.devices.choices[0].device == "cpu"
        return torch_threads(1) if here else nullcontext()

    def _choices(self) -> Choices:
        from katz_graph.executor.planning import Choices

        return Choices(self.pins, self.allowed, self.batching)

    def _link(self) -> NetworkLink | None:
        from katz_graph.ir.device import NetworkLink

        given = parse_link(self.options.link)
        return None if given is None else NetworkLink(*given)


def check_options(options: PlacementOptions) -> None:
    """Raises InputError for options that are invalid on every machine and for every workflow."""
    allowed_names(options.allow)
    parse_link(options.link)
    parse_template_place(Path(), options.template_gb, options.store_link)
    options.device_list()


def resolve(options: PlacementOptions, run: Mapping[str, Any]) -> DeviceSetup:
    """Returns the devices for a workflow. `options` take precedence over its run options.

    InputError for GPUs that this machine does not have.
    """
    devices = options.device_list(run.get("devices"))
    dtype = options.dtype or run.get("dtype") or AUTO
    check_present(devices)
    check_dtype(dtype, devices)
    pins = parse_places(options.place, devices.names)
    allowed = allowed_names(options.allow) | allowed_names(run.get("allow") or "")
    return DeviceSetup(options, devices, dtype, pins, allowed, run.get("batching"))


def check_run_options(run: Mapping[str, Any]) -> None:
    """Raises InputError if an option in a workflow's wrapper has the wrong type."""
    for name, kind in RUN_OPTIONS.items():
        value = run.get(name)
        if value is not None and (
            not isinstance(value, kind) or (kind is int and isinstance(value, bool))
        ):
            raise InputError(f"run option {name}: got {value!r}, expected {kind.__name__}")


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Sets the number of threads that torch uses for the current thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
