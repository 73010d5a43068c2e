"""A device worker's thread: what is submitted while it works, and who computes beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from katz_graph.executor.worker import Single, Worker


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_many_submit_while_it_works(hurried: None) -> None:
    worker = Worker("busy", 1)

    def submit(start: int) -> list[int]:
        jobs = [worker.submit(Single(lambda number=number: number)) for number in range(start, start + 500)]
        return [job.future.result(timeout=20) for job in jobs]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(submit, range(0, 2000, 500)))
    worker.close()
    assert [number for each in results for number in each] == list(range(2000))


THREADS = """
import os, threading, torch
from katz_graph.cli.engines import leave_processors
from katz_graph.executor.local import EngineOptions, LocalEngine

def pools():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

def compute():
    torch.nn.functional.conv2d(torch.rand(1, 64, 64, 64), torch.rand(64, 64, 3, 3))
    found.append(pools())

with LocalEngine(EngineOptions(threads=3)) as engine:
    leave_processors()
    found = [pools()]
    compute()
    print(engine.workers.call("cpu", "identity").value["key"].split(", ")[1].split("/")[0], len(set(found)))
"""


def test_only_the_device_computes_on_several_processors() -> None:
    told = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    assert told.stdout == "3 threads 1\n", told.stderr  # this thread has none of OpenMP's besides
