"""Part `groups` of `katz bench together`: random requests at the same time, which share calls where
they can. `random_members` draws them.

Each final latent is compared with the one of the same plan alone, without sharing. With a fixed
number of rows, in company and alone, it has to have the same bits, also if a worker was killed.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Self

import torch

from katz_graph.bench.conditions import quiet
from katz_graph.bench.random_members import Group, Member, Models
from katz_graph.bench.random_requests import LINK, WORKERS, moved, random_places
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import Cancelled
from katz_graph.core.events import Event, Progress
from katz_graph.core.recipe import ControlNetRecipe
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.calls.computing import Eagerly, StageCall
from katz_graph.executor.cluster.requests import Outcome
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.launch.in_process import InProcess
from katz_graph.executor.planning import plan_region
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.host import Host
from katz_graph.executor.worker.main import serve
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.provenance import STALE_CONTROLNET
from katz_graph.models.stages import Outputs
from katz_graph.packs import builtin_types
from katz_graph.planner.region import stage_of
from katz_graph.testing.requests import bare_context
from katz_graph.testing.worker_faults import FORGIVING
from katz_graph.testing.worker_threads import WorkerThreads

COUNT = 200
WAYS: Mapping[str, float] = {"one worker": 1e-5, "two workers": 1e-5, "fixed": 0.0}
"""Maps each way of sharing to the bound of differences, relative to the latent's range."""
FREE, FIXED = SharedRows(16), SharedRows(4, fixed=True)
MET = ("shared", "stale", "cancelled", "killed")
"""What happened to groups: calls that requests shared, requests with stale ControlNets, cancelled
requests, killed workers.
"""
SLOW = NetworkLink(1e9, 1.0)  # so slow that the planner never waits for residuals


@dataclass(frozen=True, slots=True)
class GroupResult:
    """Holds the largest differences of a group's latents from those of lone requests, by way of
    sharing. `met`: counts by MET.
    """

    seed: int
    model: str = ""
    requests: int = 0
    differences: Mapping[str, float] = field(default_factory=dict)
    met: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    @property
    def holds(self) -> bool:
        return all(self.differences.get(name, inf) <= bound for name, bound in WAYS.items())


@dataclass(slots=True)
class Killer:
    """Kills a worker thread after `after` calls that requests share; None: kills none."""

    after: int | None = None
    kills: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def work(self, connection: Connection) -> None:
        """Serves as a worker that can be killed."""

        def started(host: Host) -> None:
            host.models.compute = _Killable(self, connection)

        serve(connection, builtin_types(), started)

    def count(self, connection: Connection) -> None:
        """Counts a shared call of the worker with this connection."""
        with self._lock:
            if self.after is None:
                return
            self.after -= 1
            if self.after <= 0:
                self.after = None
                self.kills += 1
                connection.shut_down()


class _Killable(Eagerly):
    """Computes as a worker that is killed between the calls of a shared evaluation."""

    def __init__(self, killer: Killer, connection: Connection) -> None:
        super().__init__()
        self._killer, self._connection = killer, connection
        self._counted = 0  # shared calls

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        if self.use.shared > self._counted:
            self._counted = self.use.shared
            self._killer.count(self._connection)
        return super().together(calls)


class Groups:
    """Holds the models and engines. Use it in a `with` statement. `cache`: folder of the engines'
    measurements; `folder` if not given.
    """

    def __init__(self, folder: Path, cache: Path | None = None) -> None:
        torch.set_num_threads(1)
        self._cache = cache or folder
        self._opened = ExitStack()
        self._models = self._opened.enter_context(Models(folder, self._cache))
        self._killer = Killer()
        fixed = self._engine(FIXED, WORKERS)
        self._engines = {
            "one worker": (self._engine(ALONE), self._engine(FREE)),
            "two workers": (self._engine(ALONE, WORKERS), self._engine(FREE, WORKERS)),
            "fixed": (fixed, fixed),
        }
        """Maps each way to the engines of lone requests and of groups."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def _engine(self, rows: SharedRows, names: Sequence[str] = ("cpu",)) -> DeviceEngine:
        many = len(names) > 1
        launchers = {
            name: WorkerThreads(self._killer.work) if many else InProcess() for name in names
        }
        return self._opened.enter_context(
            DeviceEngine(
                [WorkerConfig(name, shared_rows=rows) for name in names],
                cache=self._cache,
                link=LINK if many else None,
                launchers=launchers,
                patience=FORGIVING,
            )
        )

    def run(self, seed: int, change: Callable[[Group], Group] = lambda group: group) -> GroupResult:
        """Runs the group of a seed. `change` may change what was drawn."""
        found = GroupResult(seed)
        try:
            group = change(self._models.draw(seed))
            found = replace(found, model=group.model, requests=len(group.members))
            differences = {way: self._compared(way, group, found.met) for way in self._engines}
        except Exception as error:  # the search looks for failures of any kind
            return replace(found, problem=f"{type(error).__name__}: {error}")
        return replace(found, differences=differences)

    def _compared(self, way: str, group: Group, met: Counter[str]) -> float:
        """Returns the largest difference of requests in company from the same requests alone."""
        lone, shared = self._engines[way]
        programs = [planned(lone, member) for member in group.members]
        expected = [lone.cluster.run(program, bare_context(lone)).samples for program in programs]
        self._killer.after, kills = group.killed_after, self._killer.kills
        outcomes = _at_once(shared, programs, group.members)
        self._killer.after = None
        ended = [one for one in outcomes if one is not None]
        calls = [one.timings[device].calls for one in ended for device in one.timings]
        met["shared"] += sum(counted.get("shared", 0) for counted in calls)
        met["stale"] += sum(bool(program.stale) for program in programs)
        met["cancelled"] += len(outcomes) - len(ended)
        met["killed"] += self._killer.kills - kills
        return max(
            (
                moved(outcome.samples, latent)
                for outcome, latent in zip(outcomes, expected, strict=True)
                if outcome is not None
            ),
            default=0.0,
        )


def planned(engine: DeviceEngine, member: Member) -> Program:
    """Plans a request: on two workers, with its placement."""
    cluster = engine.cluster
    target = Target(cluster.devices, cluster.links)
    program = plan_region(member.region, target, engine.counts)
    if len(cluster.devices) > 1 and member.placement == "scattered":
        pins = random_places(program, Random(member.seed))
        return plan_region(member.region, replace(target, pins=pins), engine.counts)
    if len(cluster.devices) > 1 and member.placement == "stale":
        links = dict.fromkeys(cluster.links, SLOW)
        allowed = frozenset({STALE_CONTROLNET})
        target = Target(cluster.devices, links, _controls_apart(program), allowed)
        return plan_region(member.region, target, engine.counts)
    return program


def _controls_apart(program: Program) -> dict[str, tuple[str, ...]]:
    """Places ControlNets on the second worker, and all else on the first."""
    return {
        op.id: (WORKERS[isinstance(op.inputs.get(stage_of(op).module), ControlNetRecipe)],)
        for variant in program.variants
        for op in variant.operations
        if stage_of(op).costed
    }


def _at_once(
    engine: DeviceEngine, programs: Sequence[Program], members: Sequence[Member]
) -> list[Outcome | None]:
    """Runs requests from their random times on. Returns None for cancelled ones."""

    def one(program: Program, member: Member) -> Outcome | None:
        time.sleep(member.delay)
        context = bare_context(engine)
        if member.cancelled_after is not None:
            context.listener = partial(_cancel, context, member.cancelled_after)
        try:
            return engine.cluster.run(program, context)
        except Cancelled:
            return None

    with ThreadPoolExecutor(len(programs)) as pool:
        return list(pool.map(one, programs, members))


def _cancel(context: RunContext, evaluations: int, event: Event) -> None:
    if isinstance(event, Progress) and event.value >= evaluations:
        context.cancel()


def run_groups(seeds: Iterable[int]) -> BenchResult:
    """Runs the groups of these seeds."""
    with quiet(), tempfile.TemporaryDirectory() as name, Groups(Path(name)) as groups:
        return result([groups.run(seed) for seed in seeds])


def result(found: Sequence[GroupResult]) -> BenchResult:
    wrong = [group for group in found if not group.holds]
    worst = {
        name.replace(" ", "_"): max((one.differences.get(name, inf) for one in found), default=0.0)
        for name in WAYS
    }
    metrics = {
        "groups": len(found),
        **{f"groups_{what}": sum(one.met[what] > 0 for one in found) for what in MET},
        **worst,
        "failing_seeds": [group.seed for group in wrong],
    }
    bounds = {name: f"<= {bound}" for name, bound in zip(worst, WAYS.values(), strict=True)}
    rows = [
        [f"{one.seed}: {one.model}, {one.requests} requests", *(one.met[what] for what in MET)]
        + [one.differences.get(name, inf) for name in WAYS]
        for one in (wrong or found[:10])
    ]
    notes = [f"katz bench together --part groups --seed {one.seed} {one.problem}" for one in wrong]
    return BenchResult(
        "together",
        not wrong,
        metrics,
        bounds | {"failing_seeds": "none"},
        ("seed", *MET, *WAYS),
        rows,
        notes=notes,
    )
