"""Two processes on one GPU exchange tensors through device memory. Skipped without a GPU."""

from __future__ import annotations

import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from katz_graph.executor.transport import cuda_memory
from katz_graph.executor.transport.bulk import Meeting
from katz_graph.executor.transport.codec import Closed, decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.device_memory import open_bulk
from katz_graph.testing.device_pair import device_pair

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

GPU = torch.device("cuda:0")
RESIDUALS = 108_000_000  # bytes of SDXL's residuals at 1024 x 1024 with guidance


def free_bytes() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(GPU)[0]


def test_transfers_run_at_the_speed_of_the_device() -> None:
    with device_pair(str(GPU)) as pair:
        assert pair.transport == "CUDA IPC"
        seconds = min(pair.probe(RESIDUALS) for _ in range(30))
        print(f"{seconds * 1e3:.3f} ms")
        assert seconds <= 0.3e-3
        assert min(pair.probe(64) for _ in range(30)) <= 0.3e-3


def test_a_killed_process_leaves_no_memory_and_no_wait() -> None:
    torch.ones(1, device=GPU)
    free, threads = free_bytes(), threading.active_count()
    chance = random.Random(3)
    with pytest.raises(Closed), device_pair(str(GPU)) as pair:
        last = chance.randrange(1000)
        for number in range(1000):
            if number == last:
                threading.Timer(chance.uniform(0, 1e-3), pair.process.kill).start()
            pair.probe(chance.choice([64, 1 << 20, RESIDUALS]))
    deadline = time.monotonic() + 10
    while free_bytes() < free - 2**26 or threading.active_count() > threads:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert float(torch.ones(8, device=GPU).sum()) == 8


def test_memory_that_cuda_does_not_open_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handles are damaged. Tensors pass through shared memory, and CUDA keeps no error."""
    allocate = cuda_memory.CudaAllocator.allocate

    def damaged(*given: int) -> tuple[cuda_memory.CudaArray, bytes]:
        array, handle = allocate(*given)  # type: ignore[arg-type]
        return array, handle[:8] + bytes(64)

    monkeypatch.setattr(cuda_memory.CudaAllocator, "allocate", damaged)
    connections = [Connection(end) for end in socket.socketpair()]
    meetings = [Meeting(hosts, "127.0.0.1", 0, GPU) for hosts in (True, False)]
    with (
        pytest.warns(UserWarning, match="cudaIpcOpenMemHandle fails"),
        ThreadPoolExecutor() as pool,
    ):
        here, there = pool.map(open_bulk, connections, meetings)
    assert here.transport == there.transport == "shared memory"
    sent = torch.rand(2, 8, 4, 4, device=GPU).contiguous(memory_format=torch.channels_last)
    here.take(connections[0], encode(sent))()
    came = decode(*there.receive(connections[1].receive_message()))
    assert torch.equal(came, sent.cpu()) and came.stride() == sent.stride()
    here.close()
    there.close()
    assert float((sent + 1).min()) >= 1
