"""Work on a GPU does not block the host. Skipped without a GPU."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from katz_graph.executor.transport.codec import decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.shared_memory import SharedMemory
from katz_graph.executor.worker.device_program import device_program
from katz_graph.executor.worker.execution import Execution
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.stream import CudaStream
from katz_graph.host.transfer import to_device
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sampler_region

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

GPU = torch.device("cuda:0")
SLEEP_CYCLES = 2_000_000_000  # about one second


@contextmanager
def no_waits() -> Iterator[None]:
    """Makes torch refuse waits, except on events."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_moves_and_reads_overlap_the_gpu() -> None:
    stream, there = CudaStream(GPU), to_device(torch.ones(1000), "cuda")
    stream.read(there)()  # allocates the pinned memory
    torch.cuda._sleep(SLEEP_CYCLES)
    busy = torch.cuda.Event()
    busy.record()
    with no_waits():
        read = stream.read(to_device(torch.full((1000,), 2.0), "cuda") + there)
    assert not busy.query()
    assert torch.equal(read(), torch.full((1000,), 3.0)) and busy.query()


def test_computing_continues_during_a_copy_to_the_host() -> None:
    """Work enqueued after a read can end before a slow read does; the read sees all work enqueued
    before it.
    """
    stream, there = CudaStream(GPU), torch.zeros(1 << 28, dtype=torch.uint8, device=GPU)
    stream.read(there)()  # allocates the pinned memory
    with stream.entered():
        assert torch.cuda.current_stream() != torch.cuda.default_stream()
        torch.cuda._sleep(SLEEP_CYCLES)
        read = stream.read(there.add_(3))
        small = torch.ones(8, device=GPU) + 1
        computed = torch.cuda.Event()
        computed.record()
        copied = torch.cuda.Event()
        copied.record(stream._copying)
    computed.synchronize()
    assert not copied.query()
    assert int(small[0]) == 2 and int(read().min()) == 3


def test_a_second_stream_computes_concurrently() -> None:
    stream = CudaStream(GPU)
    with stream.entered():
        there = torch.ones(1000, device=GPU)
        torch.cuda._sleep(SLEEP_CYCLES)
        there += 1
        ends = stream.timing()

        def work(add: float) -> Callable[[], tuple[torch.Tensor, ...]]:
            def enqueue() -> tuple[torch.Tensor, ...]:
                torch.cuda._sleep(SLEEP_CYCLES)
                return (there + add,)

            return enqueue

        (aside,), (here,) = stream.concurrently(work(1), work(2))
        lap, both = ends(), aside + here
        assert not lap.known
        assert torch.equal(both.cpu(), torch.full((1000,), 7.0)) and lap.known
        once = stream.timing()
        torch.cuda._sleep(SLEEP_CYCLES)
        alone = once()
        torch.cuda.synchronize()
    assert lap.seconds < 1.5 * alone.seconds


def test_shared_memory_between_workers_is_pinned() -> None:
    """The second worker gets the tensor unchanged in memory that torch knows to be pinned, and no
    CUDA error remains.
    """
    connections = [Connection(end) for end in socket.socketpair()]
    here, there = (SharedMemory(device=GPU) for _ in range(2))
    sent = torch.rand(3, 500, device=GPU)
    with CudaStream(GPU).entered():
        for factor in range(4):
            here.take(connections[0], encode(sent * factor))()
            came = decode(*there.receive(connections[1].receive_message()))
            assert came.is_pinned() and torch.equal(to_device(came, GPU), sent * factor)
    here.close()
    there.close()
    assert torch.equal(came, (sent * 3).cpu())
    del came
    assert float((sent + 1).min()) >= 1


def test_a_clock_reports_when_the_gpu_reached_an_event() -> None:
    clock, before = CudaStream(GPU).clock(), time.perf_counter()
    began = clock()
    torch.cuda._sleep(SLEEP_CYCLES)
    ended = clock()
    assert not ended.known
    seconds, here = ended.at - began.at, time.perf_counter()
    assert ended.known and seconds > 0.2
    assert before - 0.01 < began.at < ended.at < here + 0.01


@pytest.mark.parametrize("sampler", ["euler", "dpmpp_2m_sde"])
def test_no_evaluation_waits(sampler: str, sd1: Models) -> None:
    """The first two units may wait: they include the work before the loop."""
    models = DeviceModels("cuda", torch.float16)
    with local_engine() as planner:
        program = planner.plan(sampler_region(Case("test", sd1.pipeline, sampler, 5)))
        (device,) = program.instructions
        execution = Execution(device_program(program, device), models, bare_context(planner))
        with torch.inference_mode(), models.stream.entered():
            assert not execution.step() and not execution.step()
            with no_waits():
                while not execution.step():
                    pass
            assert execution.result is not None
        execution.close()
