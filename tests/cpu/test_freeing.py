"""Memory of failed work (often gigabytes) is freed at once, without garbage collection."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from stage_calls import replace_stage
from tiny_models import pipeline_folder, recipes
from torch import Tensor

from katz_graph.core.errors import RunError
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.turns.loop import DeviceThread, ServiceTask
from katz_graph.models.loading.store import ModelStore
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sampler_region


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def worker() -> Iterator[DeviceThread]:
    worker = DeviceThread("freeing", 1)
    yield worker
    worker.close()


class Held:
    """Refers to tensors weakly."""

    def __init__(self) -> None:
        self._tensors: list[weakref.ref[Tensor]] = []

    def see(self, tensor: Tensor) -> None:
        self._tensors.append(weakref.ref(tensor))

    def __bool__(self) -> bool:
        assert self._tensors
        return any(tensor() is not None for tensor in self._tensors)


def plain(held: Held) -> None:
    activations = torch.zeros(8)
    held.see(activations)
    raise RuntimeError(f"no room for {activations.shape}")


def behind_another(held: Held) -> None:
    try:
        plain(held)
    except RuntimeError as error:
        raise RunError("it does not fit") from error


def while_another_is_handled(held: Held) -> None:
    try:
        plain(held)
    except RuntimeError:
        raise RunError("it does not fit") from None


def error_of(ask: Callable[[], object]) -> BaseException:
    """Catches an error without pytest's references."""
    try:
        ask()
    except BaseException as error:
        return error
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("fail", [plain, behind_another, while_another_is_handled])
def test_the_tensors_of_a_failed_unit_go_while_its_error_is_still_read(
    worker: DeviceThread, fail: Callable[[Held], None]
) -> None:
    held = Held()
    error = error_of(worker.submit(ServiceTask(lambda: fail(held))).result)
    assert not held
    assert error.__traceback__ is not None and "no room for" in repr((error, error.__context__))


@pytest.mark.parametrize("failing", [True, False])
def test_inputs_of_a_job_are_freed_with_it(worker: DeviceThread, failing: bool) -> None:
    held, latent = Held(), torch.zeros(8)
    held.see(latent)

    def work(given: Tensor = latent) -> float:
        if failing:
            raise RuntimeError("it failed")
        return float(given.sum())

    job = worker.submit(ServiceTask(work))
    job.future.exception()
    del job, work, latent
    worker.submit(ServiceTask(lambda: None)).result()  # it has released its last job
    assert not held


def test_a_failed_request_of_an_engine_in_this_process_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, region = Held(), sampler_region(Case("plain", pipeline_folder("sd1"), "euler", 2))

    def fail(module: Any, given: Any) -> Any:
        held.see(given["features"].hidden)
        raise RuntimeError("no room")

    with local_engine() as engine:
        replace_stage(monkeypatch, "unet_mid", lambda real: fail)
        error = error_of(lambda: engine.sample(region, bare_context(engine)))
        assert not held and "no room" in str(error)


def test_failed_requests_that_share_calls_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held()
    regions = [
        sampler_region(Case("shared", pipeline_folder("sd1"), "euler", 4, seed=seed))
        for seed in range(3)
    ]

    def failing(real: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def mid(module: Any, given: Any) -> Any:
            held.see(given["features"].hidden)
            if engine.models.compute.use.shared:
                raise RuntimeError("no room")
            return real(module, given)

        return mid

    with local_engine(shared_rows=SharedRows(8)) as engine, ThreadPoolExecutor(3) as pool:
        replace_stage(monkeypatch, "unet_mid", failing)
        runs = [pool.submit(engine.sample, region, bare_context(engine)) for region in regions]
        errors = [run.exception() for run in runs]
        del runs
        engine.cluster.call("cpu", "identity")  # the device's thread has released its last unit
        assert any("no room" in str(error) for error in errors) and not held


def test_half_a_model_that_does_not_fit_goes_while_the_error_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held()

    def to(module: AutoencoderKL, device: object) -> AutoencoderKL:
        held.see(next(module.parameters()))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(AutoencoderKL, "to", to)
    error = error_of(lambda: ModelStore().vae(recipes("sd1")[2].vae, "cpu", torch.float32))
    assert not held and "out of memory" in str(error)
