"""Tests the streams on which a GPU's worker enqueues, and their waits, with simulated streams that
work as late as possible.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from device_files import FileAllocator
from processes import eventually
from simulated_cuda import DEFAULT, simulated
from torch import Tensor

from katz_graph.core.errors import Cancelled, RunError
from katz_graph.core.events import Event, Progress
from katz_graph.executor.calls.computing import Eagerly
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import plan_region
from katz_graph.executor.transport import device_memory
from katz_graph.executor.transport.mailbox import Mailbox
from katz_graph.executor.transport.transports import TRANSPORTS
from katz_graph.executor.worker import models as device_models
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.executor.worker.stream import CudaStream, HostStream, Reading
from katz_graph.ir.device import NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.models.stage_registry import stages
from katz_graph.models.stages import Outputs, Stage
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case, ControlCase
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region
from katz_graph.testing.worker_threads import WorkerThreads

GPU = torch.device("cuda:0")
COSTED = {name for name, one in stages().items() if one.costed}


def test_a_read_waits_only_for_earlier_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as gpu:
        stream, there, later = CudaStream(GPU), torch.zeros(3), torch.zeros(3)
        with stream.entered():
            computing = gpu.current
            computing.enqueue(lambda: there.fill_(7))
            read = stream.read(there)
            computing.enqueue(lambda: later.fill_(1))
        assert computing is not DEFAULT and gpu.current is DEFAULT
        assert read().tolist() == [7, 7, 7] and later.tolist() == [0, 0, 0]


def test_computing_waits_for_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as gpu:
        stream, there = CudaStream(GPU), torch.ones(3)
        with stream.entered():
            computing = gpu.current
            read = stream.read(there)
            computing.enqueue(lambda: None)
            computing.run(computing.enqueued)
        ((held, copying),) = gpu.held
        assert held is there and copying is not computing
        assert copying.done == 0 and read().tolist() == [1, 1, 1]
        assert copying.done == copying.enqueued


def test_uploads_read_pinned_memory_directly_and_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated(monkeypatch) as gpu:
        stream, found = CudaStream(GPU), torch.zeros(2, 3)
        pinned, other = gpu.pinned(torch.zeros(1, 3)), torch.full((1, 3), 2.0)
        pinned_memory = weakref.ref(pinned)
        upload = stream.upload([pinned, other])
        with torch._C.DisableTorchFunction():
            pinned.fill_(1), other.fill_(5)  # the copy of pinned memory is still enqueued
        del pinned
        stream.release()
        with stream.entered():
            there = upload()
            found.copy_(there)
            assert stream.read(found)().tolist() == [[1, 1, 1], [2, 2, 2]]
        assert pinned_memory() is not None
        stream.release()
        assert pinned_memory() is None


def test_streams_are_made_when_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Using a GPU before would initialise it, which takes seconds."""
    made: list[Any] = []
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device))
    stream = CudaStream(GPU)
    assert made == []
    with stream.entered():
        assert made == [GPU]


class Noting(HostStream):
    """Records its calls."""

    def __init__(self) -> None:
        self.inside: set[int] = set()
        self.reads = 0
        self.held: list[object] = []

    @contextmanager
    def entered(self) -> Iterator[None]:  # type: ignore[override]
        self.inside.add(threading.get_ident())
        try:
            yield
        finally:
            self.inside.remove(threading.get_ident())

    def check(self) -> None:
        assert threading.get_ident() in self.inside

    def read(self, tensor: Tensor) -> Reading:
        self.check()
        self.reads += 1
        return super().read(tensor)

    def hold(self, value: object) -> None:
        self.check()
        self.held.append(value)


def test_a_worker_enqueues_all_of_a_request_on_its_stream(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, called = Noting(), []

    class Checked(Eagerly):
        def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
            stream.check()
            called.append(stage.name)
            return super().__call__(stage, module, given)

    monkeypatch.setattr(device_models, "stream_of", lambda device: stream)
    with local_engine(cache=costs) as engine:
        engine.models.compute = Checked()
        sample(engine, sampler_region(Case("test", sd1.pipeline, "euler", 3)))
    assert {"unet_encoder", "unet_decoder"} <= set(called)
    assert stream.reads == 3 + 2 and not stream.inside  # one per evaluation, two of the result


@contextmanager
def two_workers(costs: Path) -> Iterator[DeviceEngine]:
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, cache=costs, link=link, launchers=launchers) as engine:
        yield engine


def controlled_from_elsewhere(models: Models, engine: DeviceEngine) -> Program:
    """Places only the ControlNet on another worker."""
    controls = (ControlCase(models.controls[0], 1.0, 0.0, 1.0),)
    asked = sampler_region(Case("test", models.pipeline, "euler", 2, controls=controls))
    pins = {
        one.id: ("cpu:1" if one.stage == "controlnet" else "cpu:0",)
        for one in asked.operations
        if one.stage in COSTED
    }
    return plan_region(asked, Target(engine.cluster.devices, engine.cluster.links, pins))


def test_a_worker_holds_received_tensors(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender may reuse their memory once they are released."""
    taken: list[object] = []
    stream = Noting()
    take = Mailbox.take
    monkeypatch.setattr(Mailbox, "take", lambda *given: taken.append(take(*given)) or taken[-1])
    monkeypatch.setattr(device_models, "stream_of", lambda device: stream)
    with two_workers(costs) as engine:
        engine.cluster.run(controlled_from_elsewhere(sd1, engine), bare_context(engine))
    assert len(taken) >= 4 and set(map(id, taken)) == set(map(id, stream.held))


def test_a_request_through_device_memory_gives_the_same_bits(
    sd1: Models, costs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files stand in for the memory of GPUs."""

    def picture(transport: str) -> Tensor:
        with two_workers(costs) as engine:
            assert engine.cluster.transport("cpu:0", "cpu:1") == transport
            program = controlled_from_elsewhere(sd1, engine)
            return engine.cluster.run(program, bare_context(engine)).samples

    expected = picture("shared memory")
    monkeypatch.setitem(TRANSPORTS, "CUDA IPC", replace(TRANSPORTS["CUDA IPC"], device="cpu"))  # type: ignore[arg-type]
    opened: list[FileAllocator] = []
    monkeypatch.setattr(
        device_memory,
        "CudaAllocator",
        lambda device: opened.append(FileAllocator(str(tmp_path))) or opened[-1],
    )
    assert torch.equal(picture("CUDA IPC"), expected) and len(opened) == 2
    eventually(lambda: not list(tmp_path.iterdir()), 5)


def test_a_transport_that_fails_to_open_is_reported(
    costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: torch.device) -> None:
        raise TypeError("no such call")

    monkeypatch.setitem(TRANSPORTS, "CUDA IPC", replace(TRANSPORTS["CUDA IPC"], device="cpu"))  # type: ignore[arg-type]
    monkeypatch.setattr(device_memory, "CudaAllocator", broken)
    with pytest.raises(RunError, match=r"cannot reach .*no such call"), two_workers(costs):
        pass


class Behind(Noting):
    """Completes enqueued work only when something waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.received = 0

    def hold(self, value: object) -> None:
        super().hold(value)
        self.received += 1

    def drain(self) -> None:
        self.held.clear()


@pytest.mark.defect(35)
@pytest.mark.parametrize("cancelled", [False, True])
def test_no_worker_holds_messages_of_a_request_that_ended(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch, cancelled: bool
) -> None:
    """Tests the sampler's worker, and workers that nothing waited for."""
    streams: list[Behind] = []
    monkeypatch.setattr(
        device_models, "stream_of", lambda device: streams.append(Behind()) or streams[-1]
    )
    with two_workers(costs) as engine:
        context = bare_context(engine)
        program = controlled_from_elsewhere(sd1, engine)
        if cancelled:

            def listen(event: Event) -> None:
                if isinstance(event, Progress):
                    context.cancel()

            context = replace(context, listener=listen)
            with pytest.raises(Cancelled):
                engine.cluster.run(program, context)
            engine.cluster.run(program, bare_context(engine))  # the previous one ended
        else:
            engine.cluster.run(program, context)
    assert len(streams) == 2 and all(stream.received for stream in streams)
    assert all(stream.held == [] for stream in streams)
