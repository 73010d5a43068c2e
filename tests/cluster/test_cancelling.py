"""A cancelled run ends immediately, and its unfinished work on a worker does not block other runs.
Workers are threads.

The work that a run waits for ends only after the run. `katz bench service` checks how fast a
server's job stops.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import eventually
from stage_calls import Compute, replace_stage
from test_waiting import FIRST, SECOND, Starting, end

from katz_graph.core.errors import Cancelled
from katz_graph.core.events import Event, Progress
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.worker import host
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Region
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.worker_faults import LINK
from katz_graph.testing.worker_threads import WorkerThreads

CALL_SECONDS = 60.0  # seconds of a call or an evaluation that is not released


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


@pytest.fixture(scope="module")
def region(models: Models) -> Region:
    return sampler_region(Case("plain", models.pipeline, "euler", 4))


@pytest.fixture(scope="module", params=["worker", "here"])
def engine(request: pytest.FixtureRequest, costs: Path) -> Iterator[DeviceEngine]:
    if request.param == "here":
        opened: DeviceEngine = local_engine(cache=costs)
    else:
        opened = DeviceEngine(
            [WorkerConfig("cpu:0")], cache=costs, launchers={"cpu:0": WorkerThreads()}
        )
    with opened:
        yield opened


@dataclass
class Seen:
    """Records which messages workers have handled. Their work waits for `goes_on`, which is set
    after the cancelled run has ended.
    """

    received: list[str] = field(default_factory=list)
    goes_on: threading.Event = field(default_factory=threading.Event)

    def stop_requested(self) -> bool:
        return "cancel" in self.received or "drop" in self.received


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()

    def noted(name: str, take_in: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def take_in_and_note(worker: Any, message: Any) -> None:
            take_in(worker, message)
            seen.received.append(name)

        return take_in_and_note

    for name in ("call", "cancel", "drop"):
        monkeypatch.setattr(host.Host, name, noted(name, getattr(host.Host, name)))
    return seen


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch, seen: Seen) -> list[str]:
    """Adds two calls to workers: `nap` blocks until released, and `sign` appends a name to the
    returned list.
    """
    signed: list[str] = []

    def nap(worker: Any) -> None:
        signed.append("nap")
        assert seen.goes_on.wait(CALL_SECONDS)

    more = {"nap": nap, "sign": lambda worker, name: signed.append(name)}
    monkeypatch.setattr(host, "WORK", {**host.WORK, **more})
    return signed


@contextmanager
def cancelled_soon(
    context: RunContext,
    what: Callable[[], object],
    when: Callable[[], bool],
    seen: Seen | None = None,
) -> Iterator[None]:
    """Runs `what` in a thread, cancels it once `when` holds, and expects Cancelled before the
    awaited work continues. Then waits until the worker has received the cancellation, and releases
    the work.
    """
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(what)
        try:
            eventually(when, 20)
            started = time.perf_counter()
            context.cancel()
            with pytest.raises(Cancelled):
                asked.result(20)
            print(f"ended after {(time.perf_counter() - started) * 1e3:.1f} ms")
            eventually(lambda: seen is None or seen.stop_requested(), 20)
        finally:
            if seen is not None:
                seen.goes_on.set()
        yield


def test_a_sampler_ends_within_the_evaluation_and_the_next_has_its_picture(
    engine: DeviceEngine,
    region: Region,
    models: Models,
    seen: Seen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = sample(engine, region)  # loads the models that both need
    working = threading.Event()
    has_started: list[str] = []

    def slow(middle: Compute) -> Compute:
        def compute(module: Any, given: Mapping[str, Any]) -> Any:
            has_started.append("evaluation")
            working.set()
            assert seen.goes_on.wait(CALL_SECONDS)
            return middle(module, given)

        return compute

    context = bare_context(engine)
    long = sampler_region(Case("long", models.pipeline, "euler", 100, guidance=1.0))
    with monkeypatch.context() as while_slow:
        replace_stage(while_slow, "unet_mid", slow)
        with cancelled_soon(context, lambda: engine.sample(long, context), working.is_set, seen):
            while_slow.undo()
            assert torch.equal(sample(engine, region), expected)
    assert len(has_started) == 1


def test_a_call_is_not_waited_for_and_goes_on(
    engine: DeviceEngine, services: list[str], seen: Seen
) -> None:
    context = bare_context(engine)
    device = engine.device.name
    with cancelled_soon(
        context,
        lambda: engine.cluster.call(device, "nap", context=context),
        lambda: services == ["nap"],
        seen,
    ):
        engine.cluster.call(device, "sign", "the next")
    assert services == ["nap", "the next"]


def test_a_call_that_waits_for_its_turn_is_left_out(
    engine: DeviceEngine, services: list[str], seen: Seen
) -> None:
    context, device = bare_context(engine), engine.device.name
    with ThreadPoolExecutor(1) as pool:
        nap = pool.submit(engine.cluster.call, device, "nap")
        eventually(lambda: services == ["nap"], 20)
        with cancelled_soon(
            context,
            lambda: engine.cluster.call(device, "sign", "cancelled", context=context),
            lambda: seen.received == ["call", "call"],
            seen,
        ):
            nap.result(20)
            engine.cluster.call(device, "sign", "the next")
    assert services == ["nap", "the next"]


def test_cancelled_requests_do_not_start(
    engine: DeviceEngine, region: Region, services: list[str]
) -> None:
    context = bare_context(engine)
    context.cancel()
    with pytest.raises(Cancelled):
        engine.cluster.call(engine.device.name, "nap", context=context)
    with pytest.raises(Cancelled):
        engine.sample(region, context)


def test_waiters_for_a_restarted_worker(costs: Path) -> None:
    launchers = dict.fromkeys((FIRST, SECOND), WorkerThreads(Starting(itertools.count())))
    with DeviceEngine(
        [WorkerConfig(name) for name in launchers], cache=costs, link=LINK, launchers=launchers
    ) as opened:
        end(opened, SECOND)
        eventually(lambda: SECOND not in opened.cluster._connections, 5)
        context = bare_context(opened)
        asked = threading.Event()

        def ask() -> None:
            asked.set()
            opened.cluster.call(SECOND, "identity", context=context)

        with cancelled_soon(context, ask, asked.is_set):
            pass  # the worker does not return


def test_two_concurrent_runs_are_distinguished(region: Region, models: Models, costs: Path) -> None:
    """Events, warnings and figures of a run reach only its context. Cancelling it leaves the other
    running.
    """
    other = sampler_region(Case("other", models.pipeline, "euler", 7, seed=3))
    long = sampler_region(Case("cancelled", models.pipeline, "euler", 500, seed=4))
    launchers = dict.fromkeys(("cpu:0", "cpu:1"), WorkerThreads())
    with DeviceEngine(
        [WorkerConfig(name) for name in launchers], cache=costs, launchers=launchers
    ) as opened:
        contexts = [bare_context(opened) for _ in range(3)]
        seen: list[list[Event]] = [[], [], []]
        for context, events in zip(contexts, seen, strict=True):
            context.listener = events.append
        regions = [
            replace(one, name=name) for one, name in zip((region, other, long), "abc", strict=True)
        ]
        with ThreadPoolExecutor(3) as pool:
            running = [
                pool.submit(opened.sample, one, context)
                for one, context in zip(regions, contexts, strict=True)
            ]
            made = [one.result(60)[0]["samples"] for one in running[:2]]
            eventually(lambda: any(isinstance(event, Progress) for event in seen[2]), 20)
            contexts[2].cancel()
            with pytest.raises(Cancelled):
                running[2].result(20)
        alone = [sample(opened, one) for one in regions[:2]]
    assert all(torch.equal(*pair) for pair in zip(made, alone, strict=True))
    assert [[sampler.node for sampler in context.measured.samplers] for context in contexts] == [
        ["a"],
        ["b"],
        [],
    ]
    assert [
        [event.value for event in events if isinstance(event, Progress)] for events in seen[:2]
    ] == [
        list(range(1, 5)),
        list(range(1, 8)),
    ]
    for events, name in zip(seen, "abc", strict=True):
        assert {event.node for event in events if isinstance(event, Progress)} == {name}
    assert all(context.measured.seconds["denoise"] > 0 for context in contexts[:2])
