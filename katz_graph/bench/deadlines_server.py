"""Measures servers that have more jobs with due times than they can serve, for `katz bench
deadlines`, next to a simulation of the same jobs.

All servers get the same jobs, one server after another. Capacity is the rate at which jobs of a
queue that is never empty end on the first server, measured before each load. A job counts as on
time if it ends within five times the seconds that such a job takes on the idle server.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from katz_graph.core.errors import RunError
from katz_graph.serving.simulator import Calls, Order, Request, poisson, simulate
from katz_graph.testing.server_process import Served, painting, serving

SIDES = (64, 128, 192)  # pixels
STEPS = 20
SLO = 5.0  # due time, in seconds of a job alone
DEVICES = 2
SENDERS = 16  # threads
ALONE_JOBS, PEAK_JOBS = 5, 48  # of each side on the idle server; to measure the capacity
END_TIMEOUT_S = 600.0
OPTIONS = ("--devices", f"cpu*{DEVICES}", "--devices-per-job", "1", "--queue-limit", "100000")
DUE = ("--slo", f"{SLO:g}")
ServerWay = tuple[Sequence[str], Callable[[], Order] | None]
"""The options of a server, and the order in which it is simulated; None: it is not simulated."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The seconds of a job on the idle server by side, and the capacity in jobs per second."""

    alone: Mapping[int, float]
    capacity: float

    def on_time(self, trace: Sequence[tuple[float, int]], latencies: Sequence[float]) -> float:
        """Returns the share of jobs that ended in time."""
        return fmean(
            latency <= SLO * self.alone[side]
            for (_, side), latency in zip(trace, latencies, strict=True)
        )

    def simulated(self, trace: Sequence[tuple[float, int]], order: Order) -> float:
        """Returns the share of jobs that end in time if calls take as long as at full load."""
        scale = DEVICES / self.capacity / fmean(self.alone.values()) / STEPS
        requests = [
            Request(arrival, Calls(side, STEPS), arrival + SLO * self.alone[side])
            for arrival, side in trace
        ]
        return simulate(
            requests, DEVICES, lambda side, rows: self.alone[int(str(side))] * scale, order=order
        ).on_time


def trace(
    rate: float, jobs: int, seed: int, sides: Sequence[int] = SIDES
) -> list[tuple[float, int]]:
    """Draws the arrivals and sides of jobs, `rate` per second."""
    draw = random.Random(seed)
    return [
        (arrival, draw.choice(sides)) for arrival in itertools.islice(poisson(rate, draw), jobs)
    ]


def shares_on_time(
    jobs: int, loads: Sequence[float], ways: Mapping[str, ServerWay]
) -> dict[tuple[str, float], tuple[float, float | None]]:
    """Serves jobs by servers with the options of each way. Returns the shares on time by way and
    load: measured, and simulated in the way's order, if it has one.
    """
    found: dict[tuple[str, float], tuple[float, float | None]] = {}
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            name: opened.enter_context(serving(folder / name, *OPTIONS, *options))
            for name, (options, _) in ways.items()
        }
        alone = [_alone(server) for server in servers.values()]  # predictions need it, too
        for load in loads:
            machine = Machine(alone[0], capacity(next(iter(servers.values()))))
            sent = trace(load * machine.capacity, jobs, seed=1)
            for name, (_, order) in ways.items():
                on_time = machine.on_time(sent, latencies(servers[name], sent))
                simulated = None if order is None else machine.simulated(sent, order())
                found[name, load] = on_time, simulated
    return found


def _alone(server: Served) -> dict[int, float]:
    """Returns the seconds of a job on the idle server, by side."""
    latencies(server, [(0.0, side) for side in SIDES])  # loads and measures
    return {
        side: median(latencies(server, [(0.0, side)])[0] for _ in range(ALONE_JOBS))
        for side in SIDES
    }


def capacity(server: Served, sides: Sequence[int] = SIDES) -> float:
    """Returns the jobs per second of a queue that is never empty."""
    ends = sorted(latencies(server, [(0.0, side) for side in sides] * (PEAK_JOBS // len(sides))))
    first = 2 * DEVICES  # until then devices start
    return (len(ends) - 1 - first) / (ends[-1] - ends[first])


def latencies(server: Served, jobs: Sequence[tuple[float, int]]) -> list[float]:
    """Sends jobs at their times; returns the seconds from sending to the end of each."""
    started = time.time()
    numbers = itertools.count(time.monotonic_ns() % 2**40)

    def send(job: tuple[float, int]) -> tuple[str, float]:
        at, side = job
        time.sleep(max(0.0, started + at - time.time()))
        sent = time.time()
        answer = server.submit(painting(next(numbers), STEPS, side))
        if answer.status != 200:
            raise RunError(f"the server refused a job: {answer.data}")
        return answer.data["prompt_id"], sent

    with ThreadPoolExecutor(SENDERS) as pool:
        sent = list(pool.map(send, jobs))
    history = server.wait_for([identifier for identifier, _ in sent], END_TIMEOUT_S)
    return [_ended(history[identifier]) - at for identifier, at in sent]


def _ended(entry: Mapping[str, object]) -> float:
    """Returns the end of a job in seconds since the epoch."""
    status = entry["status"]
    assert isinstance(status, dict)
    for name, data in status["messages"]:
        if name == "execution_success":
            return float(data["timestamp"]) / 1000
    raise RunError(f"a job did not complete: {status['messages']}")
