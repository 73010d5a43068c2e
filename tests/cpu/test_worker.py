"""A device worker's thread: concurrent submissions, and which threads compute."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from katz_graph.executor.turns import loop
from katz_graph.executor.turns.loop import DeviceThread, ServiceTask


@pytest.fixture
def hurried() -> Iterator[None]:
    """Makes threads switch as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def test_many_submit_while_it_works(hurried: None) -> None:
    worker = DeviceThread("busy", 1)

    def submit(start: int) -> list[int]:
        jobs = [
            worker.submit(ServiceTask(lambda number=number: number))
            for number in range(start, start + 500)
        ]
        return [job.future.result(timeout=20) for job in jobs]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(submit, range(0, 2000, 500)))
    worker.close()
    assert [number for each in results for number in each] == list(range(2000))


THREADS = """
import os, threading, torch
from katz_graph.api.devices import torch_threads
from katz_graph.testing.requests import local_engine
from katz_graph.executor.engine import DeviceEngine

def pools():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

def compute():
    torch.nn.functional.conv2d(torch.rand(1, 64, 64, 64), torch.rand(64, 64, 3, 3))
    found.append(pools())

with local_engine(threads=2) as engine, torch_threads(1):
    found = [pools()]
    compute()
    print(engine.cluster.call("cpu", "identity").value["key"].split(", ")[1].split("/")[0], len(set(found)))
"""


def test_only_the_device_computes_on_several_processors() -> None:
    result = subprocess.run(
        [sys.executable, "-c", THREADS],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "3", "GOMP_SPINCOUNT": "1000"},
    )
    assert result.stdout == "2 threads 1\n", result.stderr  # this thread has no OpenMP pool


class Steps:
    """Takes steps of 2 ms with separate weights, which take 40 ms to load, and idles for `pause`
    seconds after each. `work` spends the seconds of a step.
    """

    alone, loads = True, False
    rows, remaining, paired = 1, 0.0, True
    original_set, by_row = None, False

    def __init__(
        self,
        worker: DeviceThread,
        there: list[str],
        name: str,
        steps: int,
        pause: float = 0.0,
        work: Callable[[float], None] = time.sleep,
    ) -> None:
        self.weight_set = ("unet", name)
        self.switched, self.result = 0.0, name
        self._worker, self._there, self._left, self._pause = worker, there, steps, pause
        self._work = work
        self.ready = True

    def step(self) -> bool:
        self.switched = 0.0 if self._there[-1] == self.result else 0.04
        if self.switched:
            self._there.append(self.result)
        self._work(self.switched + 0.002)
        self._left -= 1
        if self._pause:
            self.ready = False
            timer = threading.Timer(self._pause, self.go_on)
            timer.daemon = True
            timer.start()
        return self._left == 0

    def go_on(self) -> None:
        self.ready = True
        self._worker.wake()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("pause", [0.0, 0.005])
def test_weights_are_not_brought_for_every_step_of_two_requests(
    pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock advances only with steps, so a late timer cannot end the wait for the request with
    loaded weights. `test_turns.py` has waits that end.
    """
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    there = [""]
    worker = DeviceThread("switching", 1)
    jobs = [worker.submit(Steps(worker, there, name, 30, pause, work)) for name in "ab"]
    assert [job.future.result(timeout=20) for job in jobs] == ["a", "b"]
    worker.close()
    assert len(there) <= 1 + 4  # with weights changed every other step there would be 60


def test_an_idle_request_blocks_no_other() -> None:
    there = [""]
    worker = DeviceThread("waiting", 1)
    idle = worker.submit(Steps(worker, there, "a", 2, pause=5.0))
    assert worker.submit(Steps(worker, there, "b", 30)).future.result(timeout=2) == "b"
    idle.cancel()
    worker.close()
