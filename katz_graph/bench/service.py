"""`katz bench service`: measures the server's overhead per step, job and queue request, and how
soon a cancelled job stops.

A websocket client receives progress and previews. The device has one thread, so that a core remains
for the server, as with a GPU. The cost of a step is the difference of the server's CPU time between
a long and a short job, divided by the difference of their steps. It excludes the fixed cost of a
job, which is reported separately.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from websockets.sync.client import ClientConnection, connect

from katz_graph.bench.result import BenchResult
from katz_graph.testing.server_process import Served, painting, processor_seconds, serving

COST_BOUND = 0.01
QUEUE_BOUND = 0.005  # seconds, median
STOP_BOUND = 0.05  # seconds in addition to one step
CANCELLED_JOB_STEPS = 1000  # steps of the cancelled jobs


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the size of the bench."""

    short: int = 20  # steps
    long: int = 420  # steps
    side: int = 112  # pixels; a step takes about 25 ms
    history: int = 1000  # finished jobs in the server's history
    asked: int = 300  # queue requests
    cancels: int = 10  # cancelled jobs


def run(scale: Scale | None = None) -> BenchResult:
    scale = scale or Scale()
    with tempfile.TemporaryDirectory() as name, serving(Path(name), "--threads", "1") as server:
        for _ in range(scale.history):
            while server.submit(_nothing()).status == 429:
                time.sleep(0.02)
        server.drain()
        with _watching(server, "bench") as socket:
            _timed(server, socket, painting(0, 2, scale.side, guidance=1.0))  # loads
            brief = _timed(server, socket, painting(1, scale.short, scale.side, guidance=1.0))
            whole = _timed(server, socket, painting(2, scale.long, scale.side, guidance=1.0))
            steps = scale.long - scale.short
            step = (whole.seconds - brief.seconds) / steps
            cost = (whole.processor - brief.processor) / steps
            asked = [server.get("/queue").seconds for _ in range(scale.asked)]
            stops = [_stopped(server, socket, number, scale) for number in range(scale.cancels)]
        server.stop()
    beyond = max(seconds - step for seconds in stops)
    metrics: dict[str, Any] = {
        "step_seconds": step,
        "server_seconds_a_step": cost,
        "server_share_of_a_step": cost / step,
        "server_seconds_a_job": brief.processor - scale.short * cost,
        "messages_a_second": (whole.messages - brief.messages) / (whole.seconds - brief.seconds),
        "queue_p50": median(asked),
        "queue_p99": sorted(asked)[int(0.99 * len(asked))],
        "stop_p50": median(stops),
        "stop_most": max(stops),
        "stop_beyond_a_step": beyond,
    }
    bounds = {
        "server_share_of_a_step": f"< {COST_BOUND}",
        "queue_p50": f"< {QUEUE_BOUND}",
        "stop_beyond_a_step": f"<= {STOP_BOUND}",
    }
    ok = (
        metrics["server_share_of_a_step"] < COST_BOUND
        and metrics["queue_p50"] < QUEUE_BOUND
        and beyond <= STOP_BOUND
    )
    return BenchResult(
        "service",
        ok,
        metrics,
        bounds,
        ("what", "figure"),
        [[what, value] for what, value in metrics.items()],
    )


def _nothing() -> dict[str, Any]:
    """Returns a graph that needs no model."""
    return {
        "1": {
            "class_type": "EmptyImage",
            "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0},
        },
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    }


@contextmanager
def _watching(server: Served, client: str) -> Iterator[ClientConnection]:
    with connect(f"ws://127.0.0.1:{server.port}/ws?clientId={client}", max_size=None) as socket:
        yield socket


@dataclass(frozen=True, slots=True)
class _Timed:
    """Holds the measurements of one job."""

    seconds: float  # from the sampler's start to the job's end
    processor: float  # CPU seconds of the server's process, without workers
    messages: int  # received by the client


def _timed(server: Served, socket: ClientConnection, prompt: dict[str, Any]) -> _Timed:
    before = processor_seconds(server.pid)
    identifier = server.submit(prompt, client_id="bench").data["prompt_id"]
    started, messages = 0.0, 0
    while True:
        message = socket.recv(timeout=120)
        messages += 1
        if isinstance(message, bytes):
            continue
        event = json.loads(message)
        if event["type"] == "executing" and event["data"]["node"] == "5":
            started = time.perf_counter()
        if (
            event["type"] == "executing"
            and event["data"]["node"] is None
            and event["data"]["prompt_id"] == identifier
        ):
            return _Timed(
                time.perf_counter() - started, processor_seconds(server.pid) - before, messages
            )


def _stopped(server: Served, socket: ClientConnection, number: int, scale: Scale) -> float:
    """Cancels a running job, by its route or by an interrupt. Returns the seconds until the client
    receives the interruption.
    """
    identifier = server.submit(
        painting(100 + number, CANCELLED_JOB_STEPS, scale.side), client_id="bench"
    ).data["prompt_id"]
    _until(socket, lambda event: event["type"] == "progress" and event["data"]["value"] >= 3)
    asked = time.perf_counter()
    answer = (
        server.post("/interrupt", {"prompt_id": identifier})
        if number % 2
        else server.post(f"/api/jobs/{identifier}/cancel")
    )
    assert answer.status == 200, answer
    _until(socket, lambda event: event["type"] == "execution_interrupted")
    seconds = time.perf_counter() - asked
    _until(socket, lambda event: event["type"] == "executing" and event["data"]["node"] is None)
    return seconds


def _until(socket: ClientConnection, wanted: Any) -> None:
    while True:
        message = socket.recv(timeout=60)
        if isinstance(message, str) and wanted(json.loads(message)):
            return
