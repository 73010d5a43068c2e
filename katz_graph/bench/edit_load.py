"""Part `load` of `katz bench edit`: edits that arrive at random times at two workers, on cached
activations and in full.

The network has convolutions, and random weights. Edits choose one of 20 filled templates by Zipf's
law; masks have a mean of 0.11 of the picture, as of face swaps (InstGenIE). Templates have several
numbers of steps. Full computation, one edit at a time on a worker, and cached activations with
shared calls serve the same edits. Edits a second are those of the workers' processors, which other
programs disturb least. On cached activations, workers chosen by the earliest predicted end are
compared in turns with workers chosen by the fewest requests. P95 of a hundred edits varies too much
for a bound; the bound is that of thousands on simulated devices, which take the planned seconds of
edits.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean, quantiles

import torch

from katz_graph.bench.devices import Job, job_seconds
from katz_graph.bench.edit_speed import make_usual
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.cluster.router import Lease, Router
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.base import Launcher
from katz_graph.executor.planning import Choices
from katz_graph.executor.templates.budget import TemplatePlace
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.provenance import CACHED_EDIT
from katz_graph.serving.simulator import poisson
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, sample, sampler_region
from katz_graph.testing.server_process import processor_seconds

WORKERS = 2
MIN_THROUGHPUT, MIN_MEAN, MIN_P95 = 2.0, 3.0, 1.1
LOAD = 0.9  # of the edits a second that full computation serves
BUSY = 0.7  # of those that cached activations serve
WARM_UP = 1  # rounds of `edits`, which load the models and teach the seconds of calls
ZIPF = 1.0
MASK = 1.0, 8.0  # of a beta distribution with mean 0.11
ROWS = 4
GB = 10**9


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the network, the templates, and the numbers of edits."""

    channels: tuple[int, ...] = (32, 64, 128)
    layers: tuple[int, ...] | None = None  # of a transformer, by level
    cells: int = 64
    templates: int = 20
    steps: Sequence[int] = (2, 4, 12)
    edits: int = 16  # that measure the capacity
    arrivals: int = 60  # at random times, at `LOAD`
    busy_arrivals: int = 40  # at `BUSY`, in each round
    rounds: int = 3
    predicted: int = 300  # edits whose seconds simulated ones take
    simulated: int = 3000  # in each round
    memory_bytes: int = GB  # for templates, of each worker
    launcher: Launcher | None = None  # of workers that are no processes


@dataclass(frozen=True, slots=True)
class Edits:
    """Draws edits of a network's templates."""

    pipeline: Path
    scale: Scale

    def case(self, number: int, mask: torch.Tensor, seed: int = 0) -> Case:
        """Describes an edit of a template."""
        drawn = torch.Generator().manual_seed(number)
        latent = torch.randn(1, 4, self.scale.cells, self.scale.cells, generator=drawn)
        steps = self.scale.steps[number % len(self.scale.steps)]
        return Case("edit", self.pipeline, "euler", steps, seed=seed, latent=latent, mask=mask)

    def whole(self, number: int) -> Case:
        """Describes an edit of all of a template."""
        return self.case(number, torch.ones(self.scale.cells, self.scale.cells))

    def drawn(self, count: int, seed: int) -> list[Case]:
        choices = random.Random(seed)
        weights = [1 / rank**ZIPF for rank in range(1, self.scale.templates + 1)]
        numbers = choices.choices(range(self.scale.templates), weights, k=count)
        return [self.case(one, self._mask(choices), at) for at, one in enumerate(numbers)]

    def _mask(self, choices: random.Random) -> torch.Tensor:
        cells = self.scale.cells
        side = max(1, round(choices.betavariate(*MASK) ** 0.5 * cells))
        top, left = (choices.randint(0, cells - side) for _ in range(2))
        mask = torch.zeros(cells, cells)
        mask[top : top + side, left : left + side] = 1
        return mask


class FewestRequests(Router):
    """Leases the devices with the fewest requests."""

    def _end(self, devices: Sequence[str], without: Lease | None = None) -> tuple[float, int]:
        number = super()._end(devices, without)[1]
        return number, number


class Engine(DeviceEngine):
    """Serves edits on `WORKERS` workers with one thread each."""

    def __init__(self, folder: Path, scale: Scale, cached: bool) -> None:
        place = TemplatePlace(str(folder / "templates"), scale.memory_bytes, 100 * GB)
        configs = [
            WorkerConfig(
                f"cpu:{number}",
                shared_rows=SharedRows(ROWS) if cached else ALONE,
                templates=place,
            )
            for number in range(WORKERS)
        ]
        allowed = frozenset({CACHED_EDIT} if cached else ())
        launcher = scale.launcher
        launchers = None if launcher is None else {one.name: launcher for one in configs}
        super().__init__(configs, Choices(allowed=allowed, lane=1), folder, launchers=launchers)
        names = [one.name for one in configs]
        self.routers = {
            "earliest predicted end": self._router,
            "fewest requests": FewestRequests(names, {}, 1, time.monotonic),
        }

    def choose(self, router: str) -> None:
        """Selects the router of later edits; to be called while none run."""
        self._router = self.routers[router]

    def latencies(self, cases: Sequence[Case], arrivals: Sequence[float]) -> list[float]:
        """Returns the seconds from each edit's arrival to its latent."""
        regions = [sampler_region(case) for case in cases]
        started = time.perf_counter()

        def one(number: int) -> float:
            due = started + arrivals[number]
            time.sleep(max(0.0, due - time.perf_counter()))
            sample(self, regions[number], bare_context(self))
            return time.perf_counter() - due

        with ThreadPoolExecutor(len(cases)) as pool:
            return list(pool.map(one, range(len(cases))))

    def capacity(self, cases: Sequence[Case]) -> tuple[float, float]:
        """Returns the edits a second of edits that arrive at once: of the workers' processors, and
        of the clock.
        """
        before = self._processor_seconds()
        last = max(self.latencies(cases, [0.0] * len(cases)))
        worked = self._processor_seconds() - before
        return WORKERS * len(cases) / worked, len(cases) / last

    def _processor_seconds(self) -> float:
        return sum(processor_seconds(pid or os.getpid()) for pid in self.cluster.pids().values())

    def predicted(self, case: Case) -> float:
        """Returns the planned seconds of an edit."""
        prediction = self.plan(sampler_region(case)).prediction
        assert prediction is not None
        return prediction.planned

    def fill(self, cases: Sequence[Case]) -> None:
        assert self.templates is not None
        for case in cases:
            request = self.templates.request(sampler_region(case))
            assert not isinstance(request, str), request
            self.fill_template(request, bare_context(self))


def run(scale: Scale | None = None) -> BenchResult:
    """Serves edits in all ways, with the same arrivals."""
    scale = scale or Scale()
    with tempfile.TemporaryDirectory(prefix="katz-") as name:
        folder = Path(name)
        make_usual(folder / "pipeline", scale.channels, scale.layers)
        edits = Edits(folder / "pipeline", scale)
        first, sent = edits.drawn(scale.edits, 1), edits.drawn(scale.arrivals, 2)
        with Engine(folder, scale, cached=False) as engine:
            capacity, rate = _warmed_up(engine, first)
            arrivals = _times(LOAD * rate, scale.arrivals, 2)
            full = engine.latencies(sent, arrivals)
        with Engine(folder, scale, cached=True) as engine:
            engine.fill([edits.whole(number) for number in range(scale.templates)])
            cached_capacity, cached_rate = _warmed_up(engine, first)
            cached = engine.latencies(sent, arrivals)
            seconds = [engine.predicted(case) for case in edits.drawn(scale.predicted, 3)]
            busy: dict[str, list[float]] = {router: [] for router in engine.routers}
            engine.choose("fewest requests")
            _warmed_up(engine, first)
            for seed in range(scale.rounds):
                cases = edits.drawn(scale.busy_arrivals, 4 + seed)
                times = _times(BUSY * cached_rate, len(cases), 4 + seed)
                for router, took in busy.items():
                    engine.choose(router)
                    took += engine.latencies(cases, times)
    figures = Figures()
    figures.add("load_throughput", cached_capacity / capacity, ">=", MIN_THROUGHPUT)
    figures.add("load_mean", fmean(full) / fmean(cached), ">=", MIN_MEAN)
    simulated = {router: _simulated(seconds, scale, router) for router in (Router, FewestRequests)}
    by_end, by_number = (p95(took) for took in simulated.values())
    figures.add("load_p95_by_end", by_number / by_end, ">=", MIN_P95)
    ways = {
        "in full, one at a time": (LOAD * rate, full),
        "cached activations": (LOAD * rate, cached),
        **{name: (BUSY * cached_rate, took) for name, took in busy.items()},
        **{
            f"{name}, simulated": (BUSY * WORKERS / fmean(seconds), took)
            for name, took in zip(busy, simulated.values(), strict=True)
        },
    }
    columns = ("way", "edits a second", "mean latency, s", "P95, s")
    figures.rows += [[name, rate, fmean(took), p95(took)] for name, (rate, took) in ways.items()]
    return figures.result("edit", columns)


def p95(seconds: Sequence[float]) -> float:
    return quantiles(seconds, n=20)[-1]


def _simulated(seconds: Sequence[float], scale: Scale, router: type[Router]) -> list[float]:
    """Returns the latencies of edits of these seconds on simulated devices."""
    found = []
    for seed in range(scale.rounds):
        draw = random.Random(seed)
        works = draw.choices(seconds, k=scale.simulated)
        arrivals = poisson(BUSY * WORKERS / fmean(works), draw)
        jobs = [Job(arrival, work, work) for arrival, work in zip(arrivals, works, strict=False)]
        found += job_seconds(jobs, 1, kind=router, max_planned=math.inf)
    return found


def _times(rate: float, count: int, seed: int) -> list[float]:
    return list(islice(poisson(rate, random.Random(seed)), count))


def _warmed_up(engine: Engine, cases: Sequence[Case]) -> tuple[float, float]:
    """Returns the capacity of an engine that has loaded its models."""
    for _ in range(WARM_UP):
        engine.latencies(cases, [0.0] * len(cases))
    return engine.capacity(cases)
