"""Runs `katz serve` as a process that is killed and stopped: no job is lost, and nothing
remains.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from processes import runs

from katz_graph.testing.server_process import Served, alive, painting, serving
from katz_graph.web.jobs.store import JobStore

PATIENCE = 120.0


def test_jobs_survive_signals_and_crashes(tmp_path: Path, costs: Path) -> None:
    """Two servers use one data folder in turn: the first is killed, the second is stopped."""
    with serving(tmp_path, cache=costs) as server:
        first = submit(server, painting(0, 1))
        server.wait_for([first], PATIENCE)  # the models are loaded afterwards
        killed = [submit(server, painting(seed, 60)) for seed in (1, 2)]
        until(lambda: queued(server, "queue_running") != [])
        family = server.family()
        server.kill()
        until(lambda: not alive(family))
        server.start()
        history = server.wait_for([first, *killed], PATIENCE)
        assert {entry["status"]["status_str"] for entry in history.values()} == {"success"}
        assert len(pictures(tmp_path)) == 3  # each was painted once
        running = submit(server, painting(3, 20))
        waiting = [submit(server, painting(seed, 2)) for seed in (4, 5)]
        until(lambda: queued(server, "queue_running") == [running])
        family = server.family()
        for pid in family[1:]:
            os.kill(pid, signal.SIGTERM)  # service managers may signal all processes
        time.sleep(0.2)
        assert all(map(runs, family[1:]))  # the running job may still finish
        assert server.stop()[0] == 0
        assert not alive(family)
    assert asyncio.run(statuses(tmp_path / "data", [running, *waiting])) == [
        "completed",
        "pending",
        "pending",
    ]
    assert len(pictures(tmp_path)) == 4


def pictures(folder: Path) -> list[Path]:
    return list((folder / "output").glob("*.png"))


def submit(server: Served, prompt: Mapping[str, Any]) -> str:
    answer = server.submit(prompt)
    assert answer.status == 200, answer.body
    return str(answer.data["prompt_id"])


def queued(server: Served, part: str) -> list[str]:
    return [item[1] for item in server.get("/queue").data[part]]


async def statuses(data: Path, ids: Sequence[str]) -> list[str]:
    store = JobStore.open(data)
    try:
        return [job.status for job in [await store.job(id) for id in ids] if job]
    finally:
        await store.close()


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not come about"
        time.sleep(0.02)
