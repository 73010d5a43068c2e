"""`katz serve` as a process: it paints over HTTP, ends in order, and leaves nothing."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from katz_graph.bench.served import Served, alive, painting, serving
from katz_graph.settings import WAITING
from katz_graph.web.jobs.store import JobStore

PATIENCE = 120.0


def test_paints_over_http_and_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in WAITING:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")  # OpenMP says what it read when torch loaded it
    with serving(tmp_path) as server:
        first = submit(server, painting(1, 2))
        entry = server.wait_for([first], PATIENCE)[first]
        assert entry["status"]["status_str"] == "success", entry
        (png,) = server.pictures(entry)
        again = submit_picture(server, png)  # a picture is a prompt too
        (same,) = server.pictures(server.wait_for([again], PATIENCE)[again])
        assert pixels(same) == pixels(png)
        assert "KSampler" in server.get("/object_info").data
        refused = server.submit({"1": {"class_type": "NoSuchNode", "inputs": {}}})
        assert (refused.status, refused.data["error"]["type"]) == (400, "missing_node_type")
        assert str(tmp_path).encode() not in refused.body
        metrics = server.get("/metrics").body.decode()
        assert 'katz_job_seconds_count{status="completed"} 2.0' in metrics
        assert 'katz_nodes_total{cached="true"}' in metrics  # of the second job
        family = server.family()
        assert len(family) >= 3  # the runner and its device
        assert server.stop()[0] == 0
        until(lambda: not alive(family))
        assert "Traceback" not in server.log, server.log
        looks = [line.split("'")[1] for line in server.log.splitlines() if "GOMP_SPINCOUNT" in line]
        assert len(looks) >= 2 and set(looks) == {WAITING["GOMP_SPINCOUNT"]}  # the runner's and its device's


def test_jobs_survive_signals_and_crashes(tmp_path: Path) -> None:
    """One data folder, three servers: the first is asked to end, the second is killed, the third is hurried."""
    with serving(tmp_path) as server:
        server.wait_for([submit(server, painting(0, 1))], PATIENCE)  # models are loaded now
        running = submit(server, painting(1, 20))
        waiting = [submit(server, painting(seed, 2)) for seed in (2, 3)]
        until(lambda: queued(server, "queue_running") == [running])
        assert server.stop()[0] == 0
        server.start()
        history = server.wait_for([running, *waiting], PATIENCE)
        assert {entry["status"]["status_str"] for entry in history.values()} == {"success"}
        killed = [submit(server, painting(seed, 10)) for seed in (4, 5)]
        until(lambda: queued(server, "queue_running") != [])
        family = server.family()
        server.kill()
        until(lambda: not alive(family))
        server.start()
        server.wait_for(killed, PATIENCE)
        assert len(list((tmp_path / "output").glob("*.png"))) == 6  # each painted once
        long = submit(server, painting(6, 1000, 128))
        until(lambda: queued(server, "queue_running") == [long])
        family = server.family()
        os.kill(server.pid, signal.SIGINT)
        until(lambda: server.get("/readyz").status == 503)
        refused = server.submit(painting(7, 2))
        assert (refused.status, refused.data["error"]["type"]) == (503, "shutting_down")
        assert server.get("/livez").status == 200
        assert server.stop()[0] == 0  # the second signal
        until(lambda: not alive(family))
    assert asyncio.run(unfinished(tmp_path / "data")) == [long]


def submit(server: Served, prompt: Mapping[str, Any]) -> str:
    answer = server.submit(prompt)
    assert answer.status == 200, answer.body
    return str(answer.data["prompt_id"])


def submit_picture(server: Served, png: bytes) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("POST", "/prompt", png, {"Content-Type": "image/png"})
        answer = connection.getresponse()
        body = answer.read()
        assert answer.status == 200, body
        return str(json.loads(body)["prompt_id"])
    finally:
        connection.close()


def queued(server: Served, part: str) -> list[str]:
    return [item[1] for item in server.get("/queue").data[part]]


async def unfinished(data: Path) -> list[str]:
    store = JobStore.open(data)
    try:
        return [job.id for job in await store.unfinished()]
    finally:
        await store.close()


def pixels(png: bytes) -> bytes:
    return Image.open(io.BytesIO(png)).tobytes()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.02)
