"""Tests failing devices, workers that cannot start a request, and workers that cannot report a
result. Workers are threads, so that tests can inspect them.
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stage_calls import Compute, replace_stage
from torch import Tensor

from katz_graph.core.errors import InputError, RunError
from katz_graph.executor.cluster.requests import WorkerLost
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.messages import Fault, Raised, Returned
from katz_graph.executor.planning import Choices
from katz_graph.executor.transport import connection
from katz_graph.executor.transport.connection import Connection, Frame
from katz_graph.executor.worker import host
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.region import Region
from katz_graph.models import configuration
from katz_graph.models.families.unet.architecture import unet_architecture
from katz_graph.testing.model_files import Models
from katz_graph.testing.placement import reference
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, sampler_region
from katz_graph.testing.worker_faults import FORGIVING
from katz_graph.testing.worker_threads import WorkerThreads

ILLEGAL = "CUDA error: an illegal memory access was encountered"
DEVICE = "cpu:0"
ANSWER_TIMEOUT_S = 20.0  # seconds within which a waiting caller must get an answer
UNHURRIED = replace(FORGIVING, frozen=10 * ANSWER_TIMEOUT_S)  # a worker's silence ends no test here
STEPS = 12


@pytest.fixture(scope="module")
def models(sd1: Models) -> Models:
    torch.set_num_threads(1)
    return sd1


@pytest.fixture(scope="module")
def region(models: Models) -> Region:
    return sampler_region(Case("plain", models.pipeline, "euler", STEPS))


@pytest.fixture(scope="module")
def expected(region: Region) -> Tensor:
    return reference(region)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[DeviceEngine]:
    with DeviceEngine(
        [WorkerConfig(DEVICE)],
        Choices(batching=False),
        tmp_path,
        launchers={DEVICE: WorkerThreads()},
        patience=UNHURRIED,
    ) as engine:
        yield engine


@pytest.fixture
def lost(engine: DeviceEngine) -> Counter[str]:
    """Counts the lost workers by device."""
    return engine.cluster.losses


def in_time(ask: Any, *arguments: Any) -> Any:
    """Runs a call with a time limit. A call that hangs ends when the engine closes."""
    pool = ThreadPoolExecutor(1)
    try:
        return pool.submit(ask, *arguments).result(ANSWER_TIMEOUT_S)
    finally:
        pool.shutdown(wait=False)


def break_at(monkeypatch: pytest.MonkeyPatch, breaks: Callable[[tuple[int, ...]], bool]) -> None:
    """Makes the device fail in the calls of a stage for which `breaks`, given the latent's shape,
    returns True.
    """

    def stage(real: Compute) -> Compute:
        def compute(module: Any, given: Mapping[str, Any]) -> Any:
            if breaks(given["features"].step.x.shape):
                raise torch.AcceleratorError(
                    f"{ILLEGAL}\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
                )
            return real(module, given)

        return compute

    replace_stage(monkeypatch, "unet_mid", stage)


def test_a_request_of_a_failed_device_starts_again_on_another_worker(
    engine: DeviceEngine,
    lost: Counter[str],
    region: Region,
    expected: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = itertools.count()
    break_at(monkeypatch, lambda shape: next(numbers) == 3)
    context = bare_context(engine)
    outcome = in_time(engine.cluster.run, engine.plan(region), context)
    assert outcome.attempts == 2 and torch.equal(outcome.samples, expected)
    assert lost == {DEVICE: 1}
    (warning,) = context.warnings
    assert f"{DEVICE}: the device failed: {ILLEGAL}; it starts again" in warning


def test_a_request_that_always_breaks_its_device_fails_and_a_concurrent_one_does_not(
    engine: DeviceEngine,
    models: Models,
    region: Region,
    expected: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first's failures interrupt the other, without counting as attempts of the other."""
    larger = torch.zeros(1, 4, 16, 16)
    breaking = sampler_region(Case("breaking", models.pipeline, "euler", STEPS, latent=larger))

    def breaks(shape: tuple[int, ...]) -> bool:
        if shape == larger.shape:
            return True
        time.sleep(0.05)  # the other request runs until this one has failed
        return False

    break_at(monkeypatch, breaks)
    program, other = engine.plan(region), engine.plan(breaking)
    started, context = threading.Event(), bare_context(engine)
    context.listener = lambda event: started.set()
    earlier = bare_context(engine)
    earlier.arrival = context.arrival - 1.0  # so that the device serves it first
    with ThreadPoolExecutor(1) as pool:
        concurrent = pool.submit(engine.cluster.run, program, context)
        assert started.wait(ANSWER_TIMEOUT_S)
        with pytest.raises(
            WorkerLost, match=rf"{DEVICE}: the device failed: {ILLEGAL}, in 2 attempts"
        ):
            in_time(engine.cluster.run, other, earlier)
        outcome = concurrent.result(ANSWER_TIMEOUT_S)
    assert torch.equal(outcome.samples, expected) and outcome.attempts == 3


def test_only_the_call_of_a_failed_device_is_repeated(
    engine: DeviceEngine, lost: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = itertools.count()

    def break_(worker: host.Host, times: int) -> str:
        if next(numbers) < times:
            raise RuntimeError(ILLEGAL)
        return "done"

    monkeypatch.setattr(host, "WORK", {**host.WORK, "break": break_})
    assert in_time(engine.cluster.call, DEVICE, "break", 1).value == "done"
    assert lost == {DEVICE: 1}
    with pytest.raises(WorkerLost, match=f"^{DEVICE}: the device failed: {ILLEGAL}$"):
        in_time(engine.cluster.call, DEVICE, "break", 100)
    assert lost[DEVICE] == 3


def test_a_model_that_changed_before_a_request_begins_is_an_error_of_the_request(
    engine: DeviceEngine, lost: Counter[str], models: Models, tmp_path: Path
) -> None:
    shutil.copytree(models.pipeline, tmp_path / "model")
    context = bare_context(engine)
    context.previews = True
    program = engine.plan(sampler_region(Case("changed", tmp_path / "model", "euler", STEPS)))
    file = tmp_path / "model" / "unet" / "config.json"
    file.write_text(f"{file.read_text()}\n")
    unet_architecture.cache_clear()  # a worker process has not read it yet
    configuration._config.cache_clear()
    with pytest.raises(InputError, match=r"config\.json: changed since"):
        in_time(engine.cluster.run, program, context)
    assert not lost and not context.warnings


def test_a_request_that_cannot_start_is_notified(
    engine: DeviceEngine,
    lost: Counter[str],
    region: Region,
    expected: Tensor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = engine.plan(region)
    with monkeypatch.context() as patch:
        patch.setattr(host, "Execution", lambda *_, **__: 1 / 0)
        with pytest.raises(RunError, match="internal error: ZeroDivisionError"):
            in_time(engine.cluster.run, program, bare_context(engine))
    assert torch.equal(in_time(engine.cluster.run, program, bare_context(engine)).samples, expected)
    assert not lost


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
    ],
)
def test_an_impossible_answer_is_reported(
    engine: DeviceEngine,
    lost: Counter[str],
    region: Region,
    expected: Tensor,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(host, "WORK", {**host.WORK, "picture": lambda worker: torch.zeros(3, 1001)})
    program = engine.plan(region)
    real = connection.as_bytes

    def as_bytes(tensor: Tensor) -> Tensor:
        if tensor.numel() in (3003, expected.numel()) and not torch.equal(
            tensor, region.begin.inputs["latent_image"]["samples"]
        ):
            raise error
        return real(tensor)

    with monkeypatch.context() as patch:
        patch.setattr(connection, "as_bytes", as_bytes)
        for ask in (
            lambda: engine.cluster.call(DEVICE, "picture"),
            lambda: engine.cluster.run(program, bare_context(engine)),
        ):
            with pytest.raises(RunError):
                in_time(ask)
    assert in_time(engine.cluster.call, DEVICE, "picture").value.shape == (3, 1001)
    assert not lost


def test_a_worker_that_cannot_even_report_an_error_is_replaced(
    engine: DeviceEngine,
    lost: Counter[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    real, failures = Connection.frame, itertools.count()

    def frame(self: Connection, body: Any) -> Frame:
        if isinstance(body, Returned | Raised | Fault) and next(failures) < 3:
            raise MemoryError
        return real(self, body)

    monkeypatch.setattr(Connection, "frame", frame)
    assert in_time(engine.cluster.call, DEVICE, "identity").value["dtype"] == "float32"
    assert lost == {DEVICE: 1}
    assert "a message (Raised) cannot be sent: MemoryError" in capfd.readouterr().err


def test_a_worker_that_cannot_send_its_report_is_replaced(
    engine: DeviceEngine, lost: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = Connection.transmit, itertools.count()

    def transmit(self: Connection, frame: Frame, descriptors: Any = ()) -> None:
        if b"Returned" in frame.header and next(failures) == 0:
            raise MemoryError
        real(self, frame, descriptors)

    monkeypatch.setattr(Connection, "transmit", transmit)
    assert in_time(engine.cluster.call, DEVICE, "identity").value["dtype"] == "float32"
    assert lost == {DEVICE: 1}
