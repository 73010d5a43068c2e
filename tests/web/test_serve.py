"""`katz serve` as a process that is told to end, killed and hurried: no job is lost, and nothing is
left.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from processes import runs

from katz_graph.bench.served import Served, alive, painting, serving
from katz_graph.web.jobs.store import JobStore

PATIENCE = 120.0


def test_jobs_survive_signals_and_crashes(tmp_path: Path, costs: Path) -> None:
    """One data folder, three servers: the first is asked to end, the second is killed, the third is
    hurried.
    """
    with serving(tmp_path, cache=costs) as server:
        server.wait_for([submit(server, painting(0, 1))], PATIENCE)  # models are loaded now
        running = submit(server, painting(1, 20))
        waiting = [submit(server, painting(seed, 2)) for seed in (2, 3)]
        until(lambda: queued(server, "queue_running") == [running])
        below = server.family()[1:]
        for pid in below:
            os.kill(pid, signal.SIGTERM)  # who ends a service may tell all of its processes
        time.sleep(0.2)
        assert all(map(runs, below))  # the job has its time to end
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


def queued(server: Served, part: str) -> list[str]:
    return [item[1] for item in server.get("/queue").data[part]]


async def unfinished(data: Path) -> list[str]:
    store = JobStore.open(data)
    try:
        return [job.id for job in await store.unfinished()]
    finally:
        await store.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.02)
