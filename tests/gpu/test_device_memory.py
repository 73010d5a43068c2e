"""Two processes on one GPU exchange tensors through device memory. Skipped without a GPU."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from katz_graph.executor.transport import cuda_memory
from katz_graph.executor.transport.bulk import Meeting
from katz_graph.executor.transport.codec import decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.device_memory import open_bulk
from katz_graph.testing.device_pair import RESIDUAL_BYTES, device_pair, seconds_until_noticed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

GPU = torch.device("cuda:0")


def free_bytes() -> int:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(GPU)[0]


def test_transfers_run_at_the_speed_of_the_device_until_a_process_is_killed() -> None:
    """Nothing waits for the killed process, and its memory is freed."""
    torch.ones(1, device=GPU)
    free, threads = free_bytes(), threading.active_count()
    with device_pair(str(GPU)) as pair:
        assert pair.transport == "CUDA IPC"
        assert min(pair.probe(RESIDUAL_BYTES) for _ in range(30)) <= 0.3e-3
        assert seconds_until_noticed(pair, seed=3) <= 5
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
