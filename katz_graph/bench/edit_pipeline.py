"""Part `pipeline` of `katz bench edit`: edits while their templates are read over a slow link.

The planner, the worker and the store are those of an engine in this process, on one thread. Reads
of the store take as long as over a link on which loading all layers takes a given share of a full
evaluation. Requests that compute in full, with all layers cached, and with the layers that the plan
chooses take turns; seconds are compared within a turn.

Seconds do not include those for which the device's thread waits for a processor, and the link
transfers nothing meanwhile, so that other programs disturb little. Predictions are compared as
shares of a full evaluation, because the device may be slower than it was when it was measured.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

import torch

from katz_graph.bench.edit_speed import CONVOLUTIONAL, Network
from katz_graph.bench.linked_store import FREE, Clock, Link, LinkedStore
from katz_graph.bench.result import BenchResult, Figures
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices, plan_region
from katz_graph.executor.start import start_here
from katz_graph.executor.templates.budget import TemplatePlace
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.template_loads import ActivationLoads
from katz_graph.ir.device import Target
from katz_graph.ir.program import Program
from katz_graph.ir.provenance import CACHED_EDIT
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import OfferedTemplate, Reuse
from katz_graph.planner.template import TemplateRequest
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, sampler_region

MAX_OF_BETTER = 1.03  # seconds as chosen / the better of those in full and with all cached
MIN_GAIN, GAIN_AT = 1.25, 1.0  # over full computation, where loading all takes a full evaluation
MAX_ERROR = 0.08  # of predicted seconds
MAX_WAITS = 0.05  # of the seconds after the first evaluation
PROFILED = 3  # evaluations of the profiled request
STORE_BYTES = 2**33


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the network, the cells of a side of the latent, the mask as a share of the picture, the
    evaluations of a request, the seconds of loading all layers by those of a full evaluation, and
    the number of turns.
    """

    network: Network = CONVOLUTIONAL
    cells: int = 64
    mask: float = 0.19
    steps: int = 5
    loads: Sequence[float] = (0.25, 0.5, 1.0, 2.0)
    turns: int = 2


COLUMNS = ("loads", "layers", "all cached", "chosen", "predicted", "first waits", "other waits")
NOTE = (
    "loads in full evaluations; gains over full computation; seconds of waiting, of a request's "
    "first evaluation and of the others"
)


def run(scale: Scale | None = None) -> BenchResult:
    """Compares plans at all speeds of the link."""
    scale = scale or Scale()
    with tempfile.TemporaryDirectory(prefix="katz-") as name, ExitStack() as opened:
        folder = Path(name)
        scale.network.make(folder / "network")
        place = TemplatePlace(str(folder / "templates"), STORE_BYTES, STORE_BYTES)
        config = WorkerConfig("cpu", "cpu", 1, templates=place)
        choices = Choices(allowed=frozenset({CACHED_EDIT}), batching=True)
        engine = opened.enter_context(start_here(config, choices, folder))
        compared = Edits(engine, scale, folder / "network").compared()
    figures = Figures()
    for one in compared:
        one.judge(figures)
    return figures.result("edit", COLUMNS, notes=[NOTE])


@dataclass(frozen=True, slots=True)
class Ran:
    """Holds the seconds of a request, and of its waits for loads in the first evaluation and in the
    others.
    """

    seconds: float
    first_waits: float
    waits: float


class Turn(NamedTuple):
    """Holds a request's runs: in full, with all layers cached, and as chosen."""

    full: Ran
    every: Ran
    chosen: Ran


@dataclass(frozen=True, slots=True)
class Compared:
    """Holds the turns at one speed of the link. `share`: seconds of loading all layers by those of
    a full evaluation; `predicted`: gain of the chosen plan over full computation.
    """

    share: float
    steps: int
    reuse: Reuse  # of the chosen plan
    predicted: float
    turns: list[Turn] = field(default_factory=list)

    def judge(self, figures: Figures) -> None:
        turns, share = self.turns, self.share
        gain = median(turn.full.seconds / turn.chosen.seconds for turn in turns)
        every = median(turn.full.seconds / turn.every.seconds for turn in turns)
        of_better = median(
            turn.chosen.seconds / min(turn.full.seconds, turn.every.seconds) for turn in turns
        )
        later = (self.steps - 1) / self.steps
        waits = median(turn.chosen.waits / (later * turn.chosen.seconds) for turn in turns)
        figures.add(f"of_better_at_{share:g}", of_better, "<=", MAX_OF_BETTER)
        figures.add(f"error_at_{share:g}", abs(gain / self.predicted - 1), "<=", MAX_ERROR)
        figures.add(f"waits_at_{share:g}", waits, "<=", MAX_WAITS)
        if share == GAIN_AT:
            figures.add(f"gain_at_{share:g}", gain, ">=", MIN_GAIN)
            figures.add(f"all_cached_at_{share:g}", every, "<=", 1.0)
        figures.rows.append(
            [
                f"{share:g}",
                f"{self.reuse.cached_layers} of {self.reuse.layers}",
                every,
                gain,
                self.predicted,
                median(turn.chosen.first_waits for turn in turns),
                median(turn.chosen.waits for turn in turns),
            ]
        )


class Edits:
    """Plans and runs an edit with a filled template."""

    def __init__(self, engine: DeviceEngine, scale: Scale, folder: Path) -> None:
        self._engine, self._scale = engine, scale
        self._region = edit(scale, folder, scale.steps)
        assert engine.templates is not None
        request = engine.templates.request(self._region)
        assert isinstance(request, TemplateRequest)
        engine.fill_template(request, bare_context(engine))
        offered = engine.templates.offered(request)
        assert offered is not None  # it is filled
        self._offered: OfferedTemplate = offered
        engine.profile(edit(scale, folder, PROFILED), bare_context(engine))
        self._clock = Clock.of_device(engine)
        self._link = Link(self._clock)
        models = engine.models
        assert models.template_store is not None
        models.template_store = cast(Any, LinkedStore(models.template_store, self._link))
        self._loads: list[ActivationLoads] = []
        self._open = models.activations
        cast(Any, models).activations = self._noted
        self._full, self._all = self.plan(None), self.plan(FREE)
        for program in (self._full, self._all):  # warm-up
            self.run(program)

    def _noted(self, program: Program, wake: Callable[[], None]) -> ActivationLoads | None:
        loads = self._open(program, wake)
        self._loads += [] if loads is None else [loads]
        return loads

    def plan(self, rate: float | None) -> Program:
        """Plans with a template that is read at `rate` bytes per second; None: without one."""
        devices = self._engine.cluster.devices
        target = Target(devices, allowed=frozenset({CACHED_EDIT}), batching=True)
        template = None if rate is None else replace(self._offered, bytes_per_second=rate)
        return plan_region(self._region, target, self._engine.counts, template=template)

    def run(self, program: Program, rate: float = FREE) -> Ran:
        self._link.rate = rate
        self._loads.clear()
        began, started = self._clock.now(), time.perf_counter()
        outcome = self._engine.cluster.run(program, bare_context(self._engine))
        waited = time.perf_counter() - started - (self._clock.now() - began)
        timing = outcome.timings[program.sampler_device]
        waits = [loads.waited for loads in self._loads]
        first = sum(one[0] for one in waits)
        return Ran(
            timing.prepare + timing.denoise - waited,
            first,
            sum(sum(one.values()) for one in waits) - first,
        )

    def compared(self) -> list[Compared]:
        """Runs all plans in turns."""
        steps, size = self._scale.steps, reuse_of(self._all).bytes_loaded
        plans = []
        for share in self._scale.loads:
            plan = self.plan(size / (share * seconds_of(self._full) / steps))
            predicted = seconds_of(self._full) / seconds_of(plan)
            plans.append((plan, Compared(share, steps, reuse_of(plan), predicted)))
        for _ in range(self._scale.turns):
            full = self.run(self._full)
            for plan, one in plans:
                rate = size / (one.share * full.seconds / steps)
                one.turns.append(Turn(full, self.run(self._all, rate), self.run(plan, rate)))
        return [one for _, one in plans]


def reuse_of(program: Program) -> Reuse:
    assert program.reuse is not None  # planned with a template
    return program.reuse


def seconds_of(program: Program) -> float:
    assert program.prediction is not None
    return program.prediction.planned


def edit(scale: Scale, folder: Path, steps: int) -> Region:
    """Returns a request that repaints a square off the centre, at noise levels that a template
    covers.
    """
    cells, side = scale.cells, round(scale.mask**0.5 * scale.cells)
    start = (cells - side) // 3
    mask = torch.zeros(cells, cells)
    mask[start : start + side, start : start + side] = 1
    latent = torch.zeros(1, scale.network.channels, cells, cells)
    return sampler_region(Case("edit", folder, "euler", steps, 0.5, latent=latent, mask=mask))
