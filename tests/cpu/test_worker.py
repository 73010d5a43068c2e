"""A device worker's thread: what is submitted while it works."""

from __future__ import annotations

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
    worker = Worker("busy")

    def submit(start: int) -> list[int]:
        jobs = [worker.submit(Single(lambda number=number: number)) for number in range(start, start + 500)]
        return [job.future.result(timeout=20) for job in jobs]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(submit, range(0, 2000, 500)))
    worker.close()
    assert [number for each in results for number in each] == list(range(2000))
