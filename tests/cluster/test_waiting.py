"""Callers of a lost worker always get an answer or an error. Workers are threads, ended by the
test.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from processes import eventually

from katz_graph.core.errors import Cancelled, DeviceFailed
from katz_graph.executor.cluster.requests import WorkerLost
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.in_process import WorkerThread
from katz_graph.executor.launch.work import work
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.worker import host
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import Models
from katz_graph.testing.placement import pins, plan, reference
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, sampler_region
from katz_graph.testing.worker_faults import FORGIVING, LINK
from katz_graph.testing.worker_threads import WorkerThreads

FIRST, SECOND = "cpu:0", "cpu:1"
ANSWER_TIMEOUT_S = 20.0  # seconds within which a waiting caller must get an answer


@pytest.fixture(scope="module")
def region(sd1: Models) -> Region:
    torch.set_num_threads(1)
    return sampler_region(Case("plain", sd1.pipeline, "euler", 4))


@dataclass(frozen=True)
class Starting:
    """Runs two workers; later ones hang at startup."""

    numbers: Iterator[int]

    def __call__(self, connection: Connection) -> None:
        if next(self.numbers) < 2:
            work(connection)
        else:
            connection.receive()


@contextmanager
def engine(
    costs: Path, patience: WorkerPatience = FORGIVING, entry: Callable[[Connection], None] = work
) -> Iterator[DeviceEngine]:
    before = set(threading.enumerate())
    launchers = dict.fromkeys((FIRST, SECOND), WorkerThreads(entry))
    assignments = [WorkerConfig(name) for name in launchers]
    with DeviceEngine(
        assignments, cache=costs, link=LINK, launchers=launchers, patience=patience
    ) as opened:
        yield opened
    eventually(
        lambda: (
            not any(
                thread.name.startswith("katz-") for thread in set(threading.enumerate()) - before
            )
        ),
        5,
    )


def end(opened: DeviceEngine, name: str) -> None:
    opened.cluster._supervisor._workers[name].end("the test wanted it")


def test_an_abandoned_one_is_reported_at_once_and_the_other_serves(
    region: Region, costs: Path
) -> None:
    with ThreadPoolExecutor(1) as pool, engine(costs, WorkerPatience(deaths=1)) as opened:
        on_second, on_first = (
            plan(opened, region, pins(name, name), batching=False) for name in (SECOND, FIRST)
        )
        end(opened, SECOND)
        eventually(lambda: opened.cluster._supervisor.states()[SECOND] == "dead", 5)
        for ask in (
            lambda: opened.cluster.call(SECOND, "identity"),
            lambda: opened.cluster.run(on_second, bare_context(opened)),
        ):
            with pytest.raises(
                DeviceFailed,
                match=f"device {SECOND}: its worker died 1 times .* last reason: the "
                "test wanted it",
            ):
                pool.submit(ask).result(ANSWER_TIMEOUT_S)
        outcome = pool.submit(opened.cluster.run, on_first, bare_context(opened)).result(
            ANSWER_TIMEOUT_S
        )
        assert torch.equal(outcome.samples, reference(region))


def test_calls_survive_a_worker_that_is_lost_again_and_again(costs: Path) -> None:
    with ThreadPoolExecutor(3) as pool, engine(costs) as opened:
        ending = time.monotonic() + 3.0

        def ask() -> int:
            answers = 0
            while time.monotonic() < ending:
                try:
                    answers += opened.cluster.call(SECOND, "identity").value["dtype"] == "float32"
                except WorkerLost:  # lost twice in a row
                    continue
            return answers

        asking = [pool.submit(ask) for _ in range(3)]
        while time.monotonic() < ending:
            time.sleep(random.random() * 0.05)
            end(opened, SECOND)
        answers = [one.result(ANSWER_TIMEOUT_S) for one in asking]
    print(answers)
    assert all(answers)


def test_waiters_for_a_replacement_are_notified_when_the_engine_closes(costs: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with engine(costs, entry=Starting(itertools.count())) as opened:
            end(opened, SECOND)
            eventually(lambda: opened.cluster._supervisor.states()[SECOND] == "starting", 5)
            waiting = pool.submit(opened.cluster.call, SECOND, "identity")
            time.sleep(0.2)
            assert not waiting.done()
        with pytest.raises(Cancelled):
            waiting.result(ANSWER_TIMEOUT_S)
        with pytest.raises(Cancelled):
            pool.submit(opened.cluster.call, FIRST, "identity").result(ANSWER_TIMEOUT_S)


def test_one_with_hanging_replacements_is_given_up(costs: Path) -> None:
    patience = WorkerPatience(start=4.0)  # the first two must start within it on a busy machine
    with (
        ThreadPoolExecutor(1) as pool,
        engine(costs, patience, Starting(itertools.count())) as opened,
    ):
        end(opened, SECOND)
        with pytest.raises(
            DeviceFailed,
            match=(
                "did not start 2 times in a row and is not started again; last reason: it did not "
                "start"
            ),
        ):
            pool.submit(opened.cluster.call, SECOND, "identity").result(ANSWER_TIMEOUT_S)
        assert opened.cluster.call(FIRST, "identity").value["dtype"] == "float32"


@dataclass(frozen=True)
class Spared:
    """Starts a worker that serves, a second that hangs at startup, and a spare that serves once
    `may` is set.
    """

    numbers: Iterator[int]
    may: threading.Event
    in_process = False
    any_device = True

    def launch(self, name: str, background: bool = False) -> WorkerThread:
        return WorkerThreads(self._late if background else Starting(self.numbers)).launch(name)

    def _late(self, connection: Connection) -> None:
        self.may.wait(ANSWER_TIMEOUT_S)
        work(connection)


def test_a_spare_that_is_ready_first_takes_the_place_of_one_that_still_starts(costs: Path) -> None:
    may = threading.Event()
    launchers = {FIRST: Spared(itertools.count(1), may)}
    with (
        ThreadPoolExecutor(1) as pool,
        DeviceEngine(
            [WorkerConfig(FIRST)], cache=costs, launchers=launchers, spares=True
        ) as opened,
    ):
        end(opened, FIRST)
        eventually(lambda: opened.cluster._supervisor.states()[FIRST] == "starting", 5)
        asked = pool.submit(opened.cluster.call, FIRST, "identity")
        may.set()
        assert asked.result(ANSWER_TIMEOUT_S).value["dtype"] == "float32"


def test_models_are_let_go_of_at_once_where_they_are_and_come_back_when_wanted(
    region: Region, costs: Path
) -> None:
    """A worker that is being replaced holds no models, and unloading does not wait for it."""
    with ThreadPoolExecutor(1) as pool, engine(costs, entry=Starting(itertools.count())) as opened:
        program = plan(opened, region, pins(FIRST, FIRST), batching=False)
        opened.cluster.run(program, bare_context(opened))
        gc.collect()
        held = live_weights()
        end(opened, SECOND)
        eventually(lambda: opened.cluster._supervisor.states()[SECOND] == "starting", 5)
        pool.submit(opened.unload).result(ANSWER_TIMEOUT_S / 4)
        assert live_weights() < held
        assert torch.equal(
            opened.cluster.run(program, bare_context(opened)).samples, reference(region)
        )


def live_weights() -> int:
    return sum(type(one) is torch.nn.Parameter for one in gc.get_objects())


def test_unloading_does_not_wait_long_for_a_worker_that_is_busy(
    costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("katz_graph.executor.engine.UNLOADING", 0.2)
    free, done = threading.Event(), []
    work_of = {
        **host.WORK,
        "nap": lambda worker: free.wait(ANSWER_TIMEOUT_S),
        "unload": lambda worker: done.append("unload"),
    }
    monkeypatch.setattr(host, "WORK", work_of)
    with ThreadPoolExecutor(1) as pool, engine(costs) as opened:
        napping = pool.submit(opened.cluster.call, SECOND, "nap")
        eventually(lambda: opened.cluster._calls, 5)
        began = time.monotonic()
        opened.unload()
        assert time.monotonic() - began < 2.0 and done == ["unload"]
        free.set()
        napping.result(ANSWER_TIMEOUT_S)
        eventually(lambda: len(done) == 2, 5)  # the busy worker continued
        eventually(lambda: not opened.cluster._calls, 5)
