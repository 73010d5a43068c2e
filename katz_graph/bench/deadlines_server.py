"""Measures servers that have more jobs with due times than they can serve, for `katz bench
deadlines`, next to a simulation of the same jobs.

All servers get the same jobs, one server after another. Only one runs at a time, because workers
claim processors, which servers cannot share. Capacity is the rate at which jobs of a queue that is
never empty end on a server whose jobs share no calls, measured before each load. A job counts as on
time if it ends within five times the seconds that such a job takes on the idle server.
"""

from __future__ import annotations

import itertools
import math
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

from katz_graph.core.errors import RunError
from katz_graph.ir.device import interpolated
from katz_graph.serving.simulator import Calls, Order, Request, SecondsOf, poisson, simulate
from katz_graph.testing.server_process import Served, painting, serving

SIDES = (64, 128, 192)  # pixels
STEPS = 8
SLO = 5.0  # due time, in seconds of a job alone
DEVICES = 2
MAX_ROWS = 8
ROWS = 2  # of a guided job
SENDERS = 16  # threads
ALONE_JOBS, PEAK_JOBS = 5, 60  # of each side on the idle server; to measure a capacity
END_TIMEOUT_S = 600.0
SEED = 1  # of the jobs
# of a queue that is never empty: jobs with a due time, and without
DUE_JOBS, FREE_JOBS = 240, 60
FAR_S = 3600.0  # seconds to their due times, so that none is late
MANY_JOBS = 1000  # of one client, next to another's single job
# of jobs that arrive together, after the end of all others
GROUPS, GROUP_JOBS, GROUP_STEPS = 50, 4, 20
COLUMNS = ("load", "way", "on time", "simulated", "by own due times", "error of the rest", "jobs/s")
OPTIONS = ("--devices", f"cpu*{DEVICES}", "--devices-per-job", "1", "--queue-limit", "100000")
DUE = ("--slo", f"{SLO:g}")
SHARED = ("--shared-rows", str(MAX_ROWS))
Arrivals = Sequence[tuple[float, int]]
"""Arrival in seconds and side of each job."""


@dataclass(frozen=True, slots=True)
class ServerWay:
    """A way to serve jobs: options of a server, and the order and the most rows of its
    simulation.
    """

    options: Sequence[str]
    order: Callable[[], Order]
    max_rows: int = 0


@dataclass(slots=True)
class Found:
    """Collects shares of jobs on time, by way and load, of servers and of their simulations; other
    figures by name; and rows.
    """

    real: dict[tuple[str, float], float] = field(default_factory=dict)
    simulated: dict[tuple[str, float], float] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    rows: list[Sequence[object]] = field(default_factory=list)

    def row(self, *cells: object) -> None:
        """Adds a row, and prints it at once."""
        self.rows.append([f"{one:.3f}" if isinstance(one, float) else one for one in cells])
        print(*self.rows[-1], sep="  ", file=sys.stderr, flush=True)

    def most(self, name: str, value: float) -> None:
        """Updates a figure to the largest value."""
        if not math.isnan(value):
            self.figures[name] = max(value, self.figures.get(name, value))


@dataclass(frozen=True, slots=True)
class Ran:
    """Times of a job in seconds since the epoch."""

    sent: float
    started: float
    ended: float

    @property
    def latency(self) -> float:
        return self.ended - self.sent


@dataclass(frozen=True, slots=True)
class Machine:
    """Seconds of a job by side: on the idle server, and of a device at full load, if jobs share no
    calls and if they share calls of MAX_ROWS rows. `rest`: the share of `alone` that is no
    evaluation, which jobs never share.
    """

    idle: Mapping[int, float]
    alone: Mapping[int, float]
    shared: Mapping[int, float]
    rest: Mapping[int, float]

    @property
    def capacity(self) -> float:
        """Returns the jobs per second of equal parts of all sides that share no calls."""
        return DEVICES / fmean(self.alone.values())

    def at(self, capacity: float) -> Machine:
        """Returns the same machine with another capacity."""
        factor = self.capacity / capacity
        alone, shared = (
            {side: seconds * factor for side, seconds in some.items()}
            for some in (self.alone, self.shared)
        )
        return replace(self, alone=alone, shared=shared)

    def on_time(self, jobs: Arrivals, latencies: Sequence[float]) -> float:
        """Returns the share of jobs that ended in time."""
        return fmean(
            latency <= SLO * self.idle[side]
            for (_, side), latency in zip(jobs, latencies, strict=True)
        )

    @property
    def seconds_of(self) -> SecondsOf:
        """Returns the seconds of a call by side and rows."""
        points = {
            side: {
                ROWS: (self.alone[side] - self._rest(side)) / STEPS,
                MAX_ROWS: (self.shared[side] - self._rest(side)) * MAX_ROWS / ROWS / STEPS,
            }
            for side in self.idle
        }
        return lambda side, rows: interpolated(rows, points[int(str(side))]) or 0.0

    def _rest(self, side: int) -> float:
        return self.alone[side] * self.rest[side]

    def simulated(
        self, jobs: Arrivals, order: Order, max_rows: int = 0, predictions: Sequence[float] = ()
    ) -> float:
        """Returns the share of jobs that end in time on simulated devices. `predictions`: predicted
        over true seconds of each job; without, all are true.
        """
        requests = []
        true = [1.0] * len(jobs)
        for (arrival, side), prediction in zip(jobs, predictions or true, strict=True):
            # on the idle server a job also waits for the host, whose work devices overlap
            host = max(0.0, self.idle[side] - self.alone[side])
            due = arrival + SLO * self.idle[side] - host
            work = Calls(side, STEPS, ROWS), Calls(None, 1, own=self._rest(side))
            requests.append(Request(arrival, work, due, prediction=prediction))
        return simulate(requests, DEVICES, self.seconds_of, max_rows, order).on_time


def measure(
    loads: Mapping[float, Mapping[str, ServerWay]], jobs: int, scatter: float, turns: bool
) -> Found:
    """Serves jobs at each load by a server of each way, and by its simulation. `scatter`: standard
    deviation of the logarithms of predictions of one more simulation. `turns`: also measures jobs
    and clients that take turns.
    """
    found = Found()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = None
        for load, ways in loads.items():
            machine = machine or _machine(folder)
            with started(folder) as (server, idle):
                machine = replace(machine, idle=idle).at(capacity(server, machine.alone))
                sent = trace(load * machine.capacity, jobs, SEED, SIDES)
                for name, way in ways.items():
                    if not way.options:
                        _serve(found, (name, load), machine, server, way, sent)
            for name, way in ways.items():
                if way.options:
                    with started(folder, *way.options) as (server, _):
                        _serve(found, (name, load), machine, server, way, sent)
                if way.max_rows:
                    draw = random.Random(SEED)
                    wrong = [math.exp(draw.gauss(0.0, scatter)) for _ in sent]
                    found.simulated["scattered", load] = machine.simulated(
                        sent, way.order(), way.max_rows, wrong
                    )
        if turns:
            with started(folder) as (server, _):
                _take_turns(found, server)
            with started(folder, *DUE, *SHARED) as (server, _):
                _serve_groups(found, server)
    return found


@contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[Served, Mapping[int, float]]]:
    """Yields a server with its models loaded, and the seconds of a job on it by side."""
    place = folder / "-".join(("server", *options)).replace("--", "")
    with serving(place, *OPTIONS, "--no-spare", *options, cache=folder / "cache") as server:
        for _ in range(2):
            latencies(server, [(0.0, side) for side in SIDES])
        yield server, idle_seconds(server)
        server.end()


def _machine(folder: Path) -> Machine:
    with started(folder) as (server, idle):
        rest = {side: _rest_share(server, side) for side in SIDES}
        alone = {side: DEVICES / capacity(server, {side: 1.0}, PEAK_JOBS // 2) for side in SIDES}
    with started(folder, *SHARED) as (server, _):
        shared = {side: DEVICES / capacity(server, {side: 1.0}) for side in SIDES}
    print(
        "seconds of a job on the idle server, of a device without and with shared calls:",
        *(
            f"{side} pixels {idle[side]:.3f}, {alone[side]:.3f}, {shared[side]:.3f}"
            for side in SIDES
        ),
        sep="  ",
        file=sys.stderr,
        flush=True,
    )
    return Machine(idle, alone, shared, rest)


def _rest_share(server: Served, side: int) -> float:
    """Returns the share of the devices' seconds of a job that are not its evaluations."""
    sent = send(server, [(float(number), side) for number in range(ALONE_JOBS)])
    server.drain()
    found = list[float]()
    for identifier, _ in sent:
        seconds = server.get(f"/katz/jobs/{identifier}/report").data["seconds"]
        rest = seconds["prepare"] + seconds["vae"]
        found.append(rest / (rest + seconds["denoise"]))
    return median(found)


def _serve(
    found: Found,
    key: tuple[str, float],
    machine: Machine,
    server: Served,
    way: ServerWay,
    sent: Arrivals,
) -> None:
    name, load = key
    found.real[key] = machine.on_time(sent, latencies(server, sent))
    found.simulated[key] = machine.simulated(sent, way.order(), way.max_rows)
    (error,) = figures(server, "katz_job_remaining_error")
    if way.options:
        found.most("rest_error_crowded", error)
    if way.max_rows:
        for part in ("median", "p95"):
            for value in figures(server, f"katz_calls_error_{part}"):
                found.most(f"call_error_{part}", value)
    due = sum(figures(server, "katz_jobs_due_total"))
    own = sum(figures(server, "katz_jobs_due_total", "true")) / due if due else math.nan
    found.row(load, name, found.real[key], found.simulated[key], own, error, machine.capacity)


def _take_turns(found: Found, server: Served) -> None:
    """Measures the share of the time of jobs without due times next to others, and how many jobs of
    a client start before another client's single one.
    """
    side = SIDES[0]
    fields = [{"deadline_seconds": FAR_S, "client_id": "due"}] * DUE_JOBS
    fields += [{"client_id": "free"}] * FREE_JOBS
    random.Random(SEED).shuffle(fields)
    ends = [
        ("deadline_seconds" in some, one.ended)
        for some, one in zip(fields, ran(server, [(0.0, side)] * len(fields), fields), strict=True)
    ]
    last = max(end for due, end in ends if due)
    free = sum(end <= last for due, end in ends if not due)
    found.figures["share_without_due"] = free / (free + DUE_JOBS)
    found.row("full", "share without due times", found.figures["share_without_due"])
    sent = send(server, [(0.0, side)] * MANY_JOBS, [{"client_id": "many"}] * MANY_JOBS, steps=2)
    single, _ = send(server, [(0.0, side)], [{"client_id": "single"}], steps=2)[0]
    history = server.wait_for([single], END_TIMEOUT_S)
    # jobs that started while the server read this one were not before it in the queue
    at = server.get(f"/api/jobs/{single}").data["create_time"] / 1000
    server.post("/katz/queue/clear")
    server.drain()
    began = times(history[single], at).started
    before = [times(history[one], 0.0).started for one, _ in sent if one in history]
    found.figures["jobs_before_a_single_one"] = sum(at < one < began for one in before)
    found.row("many", "jobs before a single one", found.figures["jobs_before_a_single_one"])


def _serve_groups(found: Found, server: Served) -> None:
    """Measures the error of the predicted rest of jobs whose company does not change: when jobs
    arrive later, their calls and due times change what a forecast could know.
    """
    for number in range(GROUPS):
        latencies(server, [(0.0, SIDES[number % len(SIDES)])] * GROUP_JOBS, GROUP_STEPS)
    (error,) = figures(server, "katz_job_remaining_error")
    found.figures["rest_error_median"] = error
    found.row("groups", "error of the rest", error)


def trace(
    rate: float, jobs: int, seed: int, sides: Sequence[int] = SIDES
) -> list[tuple[float, int]]:
    """Draws the arrivals and sides of jobs, `rate` per second."""
    draw = random.Random(seed)
    return [
        (arrival, draw.choice(sides)) for arrival in itertools.islice(poisson(rate, draw), jobs)
    ]


def idle_seconds(server: Served) -> dict[int, float]:
    """Returns the seconds of a job on the idle server, by side. The server learns from these jobs
    what it predicts.
    """
    return {
        side: median(latencies(server, [(0.0, side)])[0] for _ in range(ALONE_JOBS))
        for side in SIDES
    }


def capacity(
    server: Served, seconds: Mapping[int, float], jobs: int = PEAK_JOBS, steps: int = STEPS
) -> float:
    """Returns the jobs per second of equal parts of all sides, of a queue that is never empty.
    `seconds`: of a job by side, in any unit; of several sides, a job counts by them.
    """
    sent = [(0.0, side) for side in seconds] * (jobs // len(seconds))
    ended = [one.ended for one in ran(server, sent, steps=steps)]
    ends = sorted(zip(ended, (side for _, side in sent), strict=True))
    # devices start with the first jobs, and some have no job at the end
    first, *others = ends[2 * DEVICES : -DEVICES]
    work = sum(seconds[side] for _, side in others) / fmean(seconds.values())
    return work / (others[-1][0] - first[0])


def latencies(server: Served, jobs: Arrivals, steps: int = STEPS) -> list[float]:
    """Sends jobs at their times; returns the seconds from sending to the end of each."""
    return [one.latency for one in ran(server, jobs, steps=steps)]


def ran(
    server: Served, jobs: Arrivals, more: Sequence[Mapping[str, Any]] = (), steps: int = STEPS
) -> list[Ran]:
    """Sends jobs at their times, and waits for all. `more`: further fields of each submission."""
    sent = send(server, jobs, more, steps)
    # cheaper for the server than its history, which competes for the same processors
    server.drain()
    history = server.wait_for([identifier for identifier, _ in sent], END_TIMEOUT_S)
    return [times(history[identifier], at) for identifier, at in sent]


def send(
    server: Served, jobs: Arrivals, more: Sequence[Mapping[str, Any]] = (), steps: int = STEPS
) -> list[tuple[str, float]]:
    """Sends jobs at their times. Returns the id of each, and when it was sent."""
    started = time.time()
    numbers = itertools.count(time.monotonic_ns() % 2**40)

    def send_one(job: tuple[float, int], fields: Mapping[str, Any]) -> tuple[str, float]:
        at, side = job
        time.sleep(max(0.0, started + at - time.time()))
        sent = time.time()
        answer = server.submit(painting(next(numbers), steps, side), **fields)
        if answer.status != 200:
            raise RunError(f"the server refused a job: {answer.data}")
        return answer.data["prompt_id"], sent

    with ThreadPoolExecutor(SENDERS) as pool:
        return list(pool.map(send_one, jobs, more or itertools.repeat({}, len(jobs))))


def times(entry: Mapping[str, Any], sent: float) -> Ran:
    """Returns the times of an entry of the history. Raises RunError if its job failed."""
    found = {name: float(data["timestamp"]) / 1000 for name, data in entry["status"]["messages"]}
    if "execution_success" not in found:
        raise RunError(f"a job did not complete: {entry['status']['messages']}")
    return Ran(sent, found["execution_start"], found["execution_success"])


def figures(server: Served, name: str, labels: str = "") -> list[float]:
    """Returns the values of a server's metric that have these labels, such as one per device."""
    text = server.get("/metrics").body.decode()
    found = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE)
    return [float(value) for some, value in found if labels in some]
