"""`katz bench planning`: measures how soon a server plans a workflow again after an edit, and how
much planning slows a running job; compares the server's plans with those of `katz plan`.

Each edit changes an input that users change: number of steps, guidance, text, size, strength or
seed. Planning must neither wait for jobs nor slow them. Therefore the second part compares pairs of
jobs: one runs alone, the other while a client edits twice a second.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from katz_graph.bench.result import BenchResult
from katz_graph.formats.api import to_api
from katz_graph.formats.read import SHIPPED, parse_workflow
from katz_graph.packs import load_registry
from katz_graph.testing.server_process import Served, painting

P95_BOUND = 1.0  # seconds, 95th percentile
SLOWED_BOUND = 0.01
KEYS = "one_device", "two_devices"
AT_ONCE = 8  # concurrent edits of one client
WORDS = ("a", "large", "small", "red", "blue", "star", "circle", "on", "grass", "at", "the", "left")
EDITS: Mapping[str, Any] = {
    "steps": lambda draw: draw.randint(4, 40),
    "cfg": lambda draw: round(draw.uniform(1, 12), 2),
    "seed": lambda draw: draw.getrandbits(64),
    "text": lambda draw: " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 60))),
    "strength": lambda draw: round(draw.uniform(0.1, 1), 2),
    "width": lambda draw: 8 * draw.randint(6, 16),
    "strength_model": lambda draw: round(draw.uniform(0.1, 1), 2),
}
"""Draws a value for the input, by input name."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sets the numbers of edits and jobs."""

    edits: int = 20  # per workflow
    pairs: int = 24  # of jobs, with and without edits
    steps: int = 200  # per job
    side: int = 112  # pixels; a step takes about 25 ms
    every: float = 0.5  # seconds between edits during a job


def run(scale: Scale | None = None, seed: int = 0) -> BenchResult:
    scale, draw = scale or Scale(), random.Random(seed)
    workflows = dict(_workflows())
    rows: list[list[Any]] = []
    metrics: dict[str, Any] = {}
    for key, options in zip(KEYS, ((), ("--devices", "cpu*2")), strict=True):
        given = "--threads", "1", *options
        with tempfile.TemporaryDirectory() as folder:
            server = Served(Path(folder), *given)
            server.run_katz("plan", str(SHIPPED / "txt2img.json"), *given)  # measures the devices
            with server:
                first, later = [], []
                same = _as_printed(server, *given)
                for workflow, prompt in workflows.items():
                    unknown, *known = [
                        _planned(server, _edited(prompt, draw)) for _ in range(scale.edits + 1)
                    ]
                    rows.append([f"{workflow}, {key}", unknown, median(known), max(known)])
                    first.append(unknown)
                    later += known
                metrics[f"{key}_p50"] = median(later)
                metrics[f"{key}_p95"] = sorted(later)[int(0.95 * len(later))]
                metrics[f"{key}_first_most"] = max(first)
                metrics[f"{key}_same"] = same
                metrics[f"{key}_newest"] = _newest_wins(server, workflows["controlnet_lora"])
                if not options:
                    slowed = list(_slowed(server, workflows["controlnet_lora"], scale, draw))
    metrics["slowed"] = median(slowed)
    slowest = max(metrics["one_device_p95"], metrics["two_devices_p95"])
    right = all(metrics[f"{key}_{name}"] for key in KEYS for name in ("newest", "same"))
    bounds = {
        "one_device_p95": f"<= {P95_BOUND}",
        "two_devices_p95": f"<= {P95_BOUND}",
        "slowed": f"<= {SLOWED_BOUND}",
    }
    ok = slowest <= P95_BOUND and right and metrics["slowed"] <= SLOWED_BOUND
    columns = ("workflow", "first s", "median s", "most s")
    return BenchResult("planning", ok, metrics, bounds, columns, rows)


def _workflows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the shipped workflows in the API format, by name."""
    registry, _ = load_registry()
    for file in sorted(SHIPPED.glob("*.json")):
        document = json.loads(file.read_text("utf-8"))
        yield file.stem, dict(to_api(parse_workflow(document, registry).graph))


def _as_printed(server: Served, *options: str) -> bool:
    """Returns whether the server's plans of all shipped workflows equal those of `katz plan
    --json`.
    """
    for file in sorted(SHIPPED.glob("*.json")):
        printed = json.loads(server.run_katz("plan", str(file), "--json", *options))
        document = json.loads(file.read_text("utf-8"))
        answer_data = server.post("/katz/plan", {"prompt": document}).data["plans"]
        if answer_data != (printed if isinstance(printed, list) else [printed]):
            return False
    return True


def _edited(prompt: Mapping[str, Any], draw: random.Random) -> dict[str, Any]:
    """Returns a copy of a graph with one input changed."""
    places = [
        (node, name)
        for node, call in prompt.items()
        for name, value in call["inputs"].items()
        if name in EDITS and not isinstance(value, list)
        if name != "width" or isinstance(value, int)  # an area's width may be a share
    ]
    node, name = draw.choice(places)
    inputs = {**prompt[node]["inputs"], name: EDITS[name](draw)}
    return {**prompt, node: {**prompt[node], "inputs": inputs}}


def _planned(server: Served, prompt: Mapping[str, Any]) -> float:
    """Requests the plans of a graph; returns the seconds until the response."""
    answer = server.post("/katz/plan", {"prompt": prompt, "client_id": "bench"})
    answer_data = answer.data
    assert answer.status == 200 and answer_data["plans"], answer_data
    return answer.seconds


def _newest_wins(server: Served, prompt: Mapping[str, Any]) -> bool:
    """Sends concurrent edits of one client, in order. Returns whether the last edit gets its own
    plan, and every other edit its own plan or status 409.
    """
    (node,) = (name for name, call in prompt.items() if "steps" in call["inputs"])

    def asked(steps: int) -> tuple[int, int]:
        inputs = {**prompt[node]["inputs"], "steps": steps}
        body = {"prompt": {**prompt, node: {**prompt[node], "inputs": inputs}}, "client_id": "x"}
        answer = server.post("/katz/plan", body)
        planned = answer.data["plans"][0]["evaluations"] if answer.status == 200 else steps
        return answer.status, planned - steps

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = []
        for number in range(AT_ONCE):
            answers.append(pool.submit(asked, 50 + number))
            time.sleep(0.02)  # so that they arrive in order
        answer_data = [one.result() for one in answers]
    return answer_data[-1] == (200, 0) and all(one in ((200, 0), (409, 0)) for one in answer_data)


def _slowed(
    server: Served, prompt: Mapping[str, Any], scale: Scale, draw: random.Random
) -> Iterator[float]:
    """Yields the relative slowdown of a job with concurrent edits, by pair of jobs."""
    _job_seconds(server, -1, scale)  # loads
    for number in range(scale.pairs):
        seconds = {}
        for edits in (True, False) if number % 2 else (False, True):
            ended = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                editing = pool.submit(_edit, server, prompt, scale, draw, ended) if edits else None
                seconds[edits] = _job_seconds(server, 2 * number + edits, scale)
                ended.set()
                if editing is not None:
                    editing.result()
        yield seconds[True] / seconds[False] - 1


def _edit(
    server: Served,
    prompt: Mapping[str, Any],
    scale: Scale,
    draw: random.Random,
    ended: threading.Event,
) -> None:
    while not ended.wait(scale.every):
        _planned(server, _edited(prompt, draw))


def _job_seconds(server: Served, seed: int, scale: Scale) -> float:
    """Returns the seconds of a job's denoising loop."""
    prompt = painting(1000 + seed, scale.steps, scale.side, guidance=1.0)
    identifier = server.submit(prompt).data["prompt_id"]
    server.wait_for([identifier], 300)
    report = server.get(f"/katz/jobs/{identifier}/report").data
    return float(report["seconds"]["denoise"])
