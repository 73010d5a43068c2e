"""Shared memory that a GPU copies from and to: its registration with CUDA, and waiting for the
copies. CUDA's library and streams are fakes.
"""

from __future__ import annotations

import gc
import socket
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from simulated_cuda import DEVICE, Event, simulated
from torch import Tensor

from katz_graph.executor.transport.coalesce import coalesced
from katz_graph.executor.transport.codec import Encoded, as_bytes, decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.shared_memory import SharedMemory
from katz_graph.executor.worker.stream import CudaStream


class Library:
    """Fakes CUDA: holds registered sizes by address; counts calls."""

    def __init__(self, fails: int = 0) -> None:
        self._fails = fails
        self.registered: dict[int, int] = {}
        self.calls: Counter[str] = Counter()
        self.on: list[torch.device] = []  # device of each call

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        assert self.on and is_mapped(address)
        self.calls["register"] += 1
        if not self._fails:
            assert address not in self.registered
            self.registered[address] = size
        return self._fails

    def cudaHostUnregister(self, address: int) -> int:
        assert self.on and is_mapped(address)
        self.calls["unregister"] += 1
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:
        return f"error {error}"

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        self.on.append(device)
        yield
        self.on.pop()


def is_mapped(address: int) -> bool:
    starts = [line.split("-")[0] for line in Path("/proc/self/maps").read_text().splitlines()]
    return f"{address:x}" in {start.lstrip("0") for start in starts}


def stand_in(monkeypatch: pytest.MonkeyPatch, fails: int = 0) -> Library:
    library = Library(fails)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: library)
    monkeypatch.setattr(torch.cuda, "device", library.device)
    return library


class Ends:
    """Holds both ends of a transport between GPU workers."""

    def __init__(self, device: torch.device = DEVICE) -> None:
        self.connections = [Connection(end) for end in socket.socketpair()]
        self.here, self.there = (SharedMemory(1 << 20, device) for _ in range(2))

    def pass_on(self, value: Any) -> Any:
        self.here.take(self.connections[0], encode(value))()
        return decode(*self.there.receive(self.connections[1].receive_message()))

    def close(self) -> None:
        self.here.close()
        self.there.close()
        for connection in self.connections:
            connection.close()


def test_a_mapping_is_registered_once_and_unregistered_before_it_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fake checks that the memory is mapped."""
    library, ends = stand_in(monkeypatch), Ends()
    for number in range(8):
        assert torch.equal(ends.pass_on(torch.full((500,), number)), torch.full((500,), number))
    assert library.calls == {"register": 2}  # one per end
    assert all(size > 64 << 10 for size in library.registered.values())
    ends.pass_on(torch.zeros(200_000, dtype=torch.uint8))
    assert library.calls["register"] == 4
    for number in (900_000, 10):  # the first evicts the others
        ends.pass_on(torch.zeros(number, dtype=torch.uint8))
    gc.collect()
    assert library.calls == {"register": 6, "unregister": 4}
    ends.close()
    gc.collect()
    assert library.calls == {"register": 6, "unregister": 6} and not library.registered


def test_received_tensors_outlive_the_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    library, ends = stand_in(monkeypatch), Ends()
    received = ends.pass_on({"all": torch.arange(1000)})["all"][7:9]
    ends.close()
    gc.collect()
    assert library.calls == {"register": 2, "unregister": 1}
    assert received.tolist() == [7, 8] and is_mapped(next(iter(library.registered)))
    del received
    assert library.calls == {"register": 2, "unregister": 2}


def test_unregistrable_memory_is_used_unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    library, ends = stand_in(monkeypatch, fails=2), Ends()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        for size in (10, 100_000, 200_000):
            assert ends.pass_on(torch.ones(size)).sum() == size
    assert library.calls == {"register": 6}
    (warning,) = warned
    assert "does not register shared memory (error 2)" in str(warning.message)
    ends.close()
    gc.collect()
    assert library.calls == {"register": 6}


def test_cuda_start_failures_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)

    def broken() -> None:
        raise RuntimeError("no driver\nof any kind")

    monkeypatch.setattr(torch.cuda, "cudart", broken)
    ends = Ends()
    with pytest.warns(UserWarning, match=r"\(no driver\)"):
        assert ends.pass_on(torch.ones(3)).sum() == 3
    ends.close()


def test_a_processor_asks_nothing_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    library = stand_in(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Event", None)
    ends = Ends(torch.device("cpu"))
    assert ends.pass_on(torch.ones(3)).sum() == 3
    ends.close()
    assert not library.calls


class Noting:
    """Fakes a connection: records a block's content when its message is sent."""

    def __init__(self, look: Callable[[], Any]) -> None:
        self._look = look
        self.seen: list[Any] = []

    def send(self, body: Any, descriptors: Any = ()) -> None:
        self.seen.append(self._look())


def test_a_message_is_sent_once_all_its_copies_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    with simulated(monkeypatch) as gpu:
        stream, pool = CudaStream(DEVICE), SharedMemory(1 << 20, DEVICE)
        made = [gpu.has(torch.zeros(300)) for _ in range(3)]

        def block() -> list[float]:
            (segment,) = pool.sending.segments.values()
            data = torch.from_numpy(segment.array(3 * 1216)).view(torch.float32).view(3, -1)
            return [float(row[299]) for row in data]

        connection, before = Noting(block), Event.waits
        with stream.entered():
            for number, tensor in enumerate(made):
                gpu.current.enqueue(lambda tensor=tensor, number=number: tensor.fill_(number + 1))  # type: ignore[misc]
            transfer = pool.take(connection, Encoded(b"", tuple(made)))  # type: ignore[arg-type]
            made[0].fill_(-1)  # work enqueued later does not change the message
            assert Event.waits == before
            transfer()
            assert gpu.current.done < gpu.current.enqueued
    assert connection.seen == [[1, 2, 3]]
    assert Event.waits == before + 1


def test_a_block_on_the_host_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Network links send such blocks."""
    with simulated(monkeypatch) as gpu, CudaStream(DEVICE).entered():
        tensor = gpu.has(torch.zeros(4))
        gpu.current.enqueue(lambda: tensor.fill_(5))
        block = coalesced([tensor], torch.device("cpu"))
    assert block.view(torch.float32)[:4].tolist() == [5, 5, 5, 5]
    assert as_bytes(tensor).numel() == 16


@pytest.mark.defect(35)
def test_held_tensors_are_waited_for_when_a_request_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    ends = Ends()
    came: list[Tensor] = [ends.pass_on(torch.full((9,), number)) for number in (3.0, 4.0)]
    segments = list(ends.here.sending.segments.values())
    with simulated(monkeypatch) as gpu:
        stream = CudaStream(DEVICE)
        with stream.entered():
            while came:
                gpu.current.enqueue(lambda: None)  # the copy
                stream.hold(came.pop())
        assert not any(segment.free for segment in segments)
        stream.drain()
        stream.drain()
    assert all(segment.free for segment in segments)
    ends.close()


def test_source_tensors_are_held_until_the_copy_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment is free when its last view is released; a GPU's copies hold no view."""
    stand_in(monkeypatch)
    ends = Ends()
    came: list[Tensor] = [ends.pass_on(torch.full((9,), 3.0))]
    (segment,) = ends.here.sending.segments.values()
    with simulated(monkeypatch) as gpu:
        stream = CudaStream(DEVICE)
        with stream.entered():
            gpu.current.enqueue(lambda: None)  # the copy
            stream.hold(came.pop())
            stream.release()
            assert not segment.free
            gpu.current.run(gpu.current.enqueued)
        stream.release()
    assert segment.free
    ends.close()
