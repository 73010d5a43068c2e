"""`katz bench devices`: mean seconds of jobs on a server that gives each job one device or all, by
load, against one device a job. `--simulate` does so on simulated devices.

Jobs sample images of three sizes in equal parts, on two devices. Load 1 is the most that the
devices can serve with one device a job. In the simulation, jobs take the seconds and speed-ups of
`SIMULATED`, planning takes no time, and devices serve jobs by arrival.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean

from katz_graph.bench.deadlines_server import capacity, latencies, trace
from katz_graph.bench.result import BenchResult
from katz_graph.core.devices import BY_LOAD, Lane
from katz_graph.executor.cluster.router import Lease, Router
from katz_graph.ir.device import Target
from katz_graph.ir.program import Call, Prediction, Program
from katz_graph.ir.region import Operation, Region
from katz_graph.serving.simulator import poisson
from katz_graph.testing.server_process import serving

DEVICES = ("cpu:0", "cpu:1")
SIDES = (128, 192, 256)  # pixels
SIMULATED: Mapping[int, tuple[float, float]] = {128: (0.5, 1.35), 192: (0.9, 1.5), 256: (1.6, 1.6)}
"""Seconds of a job on one device, and how many times faster both devices are, by side."""
MAX_RATIOS = {0.2: 0.85, 0.9: 1.03}  # of the mean seconds with one device a job, by load
MAX_PLANNED_JOBS = 6  # at the same time
ROUNDS = 3
STEPS = 20
WARM_UP = 3  # jobs of each side
OPTIONS = ("--devices", f"cpu*{len(DEVICES)}", "--queue-limit", "100000")
_BEGIN, _END = (Operation(name, name, name, {}) for name in ("step_begin", "step_end"))


def run(simulate: bool = False, jobs: int | None = None) -> BenchResult:
    """Measures servers, or runs a simulation. `jobs`: at each load."""
    found = _simulated(jobs or 3000) if simulate else _measured(jobs or 150)
    ratios = {f"auto_over_one_at_{load:g}": auto / one for load, (one, auto) in found.items()}
    limits = {f"auto_over_one_at_{load:g}": bound for load, bound in MAX_RATIOS.items()}
    return BenchResult(
        "devices",
        all(ratios[name] <= bound for name, bound in limits.items()),
        ratios,
        {name: f"<= {bound}" for name, bound in limits.items()},
        ("load", "one device, s", "auto, s", "ratio"),
        [[load, one, auto, auto / one] for load, (one, auto) in found.items()],
    )


def _measured(jobs: int) -> dict[float, tuple[float, float]]:
    """Returns the mean seconds of a job by load, with one device a job and by load. The servers
    take turns. Only one runs at a time, because workers claim processors, which servers cannot
    share.
    """
    seconds: dict[float, list[list[float]]] = {load: [[], []] for load in MAX_RATIOS}
    with tempfile.TemporaryDirectory() as name:
        rate = 0.0
        for seed in range(ROUNDS):
            for number, way in enumerate(("1", BY_LOAD)):
                with serving(
                    Path(name, way),
                    *OPTIONS,
                    "--devices-per-job",
                    way,
                    cache=Path(name, "cache"),
                ) as server:
                    # each side alone: the router learns the pace of one device and of both
                    for side in SIDES * WARM_UP:
                        latencies(server, [(0.0, side)], STEPS)
                    if number == 0:
                        alone = {side: latencies(server, [(0.0, side)], STEPS)[0] for side in SIDES}
                        rate = capacity(server, alone, steps=STEPS)
                    for load, taken in seconds.items():
                        sent = trace(load * rate, jobs // ROUNDS, seed, SIDES)
                        taken[number] += latencies(server, sent, STEPS)
                    server.end()
    return {load: (fmean(one), fmean(auto)) for load, (one, auto) in seconds.items()}


def _simulated(jobs: int) -> dict[float, tuple[float, float]]:
    found = {}
    for load in MAX_RATIOS:
        traces = [poisson_jobs(load, jobs, seed) for seed in range(ROUNDS)]
        one, auto = (fmean(served(sent, lane) for sent in traces) for lane in (1, BY_LOAD))
        found[load] = one, auto
    return found


@dataclass(frozen=True, slots=True)
class Job:
    """A simulated job: its arrival, and its seconds on one device and on all."""

    arrival: float
    alone: float
    together: float


def poisson_jobs(load: float, count: int, seed: int) -> list[Job]:
    draw = random.Random(seed)
    rate = load * len(DEVICES) / fmean(alone for alone, _ in SIMULATED.values())
    kinds = list(SIMULATED.values())
    return [
        Job(arrival, alone, alone / speed_up)
        for arrival in islice(poisson(rate, draw), count)
        for alone, speed_up in [draw.choice(kinds)]
    ]


def served(jobs: Sequence[Job], lane: Lane, prediction: float = 1.0) -> float:
    """Serves jobs on the devices that a `Router` leases; returns their mean seconds. `prediction`:
    planned over true seconds.
    """
    return fmean(job_seconds(jobs, lane, prediction))


def job_seconds(
    jobs: Sequence[Job],
    lane: Lane,
    prediction: float = 1.0,
    kind: type[Router] = Router,
    max_planned: float = MAX_PLANNED_JOBS,
) -> list[float]:
    """Returns the seconds from each job's arrival to its end. A job runs while no earlier one uses
    any of its devices. `kind` leases the devices; `max_planned`: jobs with a lease.
    """
    now = 0.0
    router = kind(DEVICES, {}, lane, lambda: now)
    coming, waiting = list(reversed(jobs)), list[Job]()
    active: list[tuple[Job, Lease]] = []
    rest: dict[Job, float] = {}
    taken = []
    while coming or active:
        while waiting and len(active) < max_planned:
            job = waiting.pop(0)
            lease, rest[job] = _leased(router, job, prediction)
            active.append((job, lease))
        running, free = [], set(DEVICES)
        for job, lease in active:
            if lease.used <= free:
                running.append(job)
                free -= lease.used
        arrival = coming[-1].arrival if coming else math.inf
        then = min([arrival, *(now + rest[job] for job in running)])
        for job in running:
            rest[job] -= then - now
        now = then
        if now == arrival:
            waiting.append(coming.pop())
        for job, lease in [(job, lease) for job, lease in active if rest[job] <= 1e-9]:
            active.remove((job, lease))
            router.dismiss(lease, completed=True)
            taken.append(now - job.arrival)
    return taken


def _leased(router: Router, job: Job, prediction: float) -> tuple[Lease, float]:
    """Returns a job's lease, and its seconds on the lease's devices."""
    region = Region(_BEGIN, (), _END, "")
    lease = router.admit(region)
    program, seconds = _program(region, job.alone * prediction, lease.devices), job.alone
    together = _program(region, job.together * prediction, DEVICES)
    wider = router.wider(lease)
    if wider is not None and router.widened(lease, wider, together, program):
        program, seconds = together, job.together
    router.planned(lease, program)
    return lease, seconds


def _program(region: Region, seconds: float, devices: Sequence[str]) -> Program:
    calls = tuple(Call((), "", device, seconds) for device in devices)
    prediction = Prediction(seconds, seconds, seconds, seconds, "")
    return Program(region, (), Target(), calls=(calls,), prediction=prediction)
