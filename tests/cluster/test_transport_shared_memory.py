"""Values sent through shared memory of one host arrive equal and in order, and memory does not
grow. A killed process is detected and leaves nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from other_process import End, Other, descriptors_open, ended_by_the_other, memory_files

from katz_graph.core.errors import RunError
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.transport.shared_memory import SharedMemory
from katz_graph.ir.values import Residuals

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e5m2,
    torch.uint8,
    torch.int64,
    torch.bool,
]


@pytest.fixture(scope="module")
def other(fake_server: ForkServer) -> Iterator[Other]:
    """Yields one process for all tests that do not kill it; a peer can be connected to it once."""
    other = Other(fake_server)
    yield other
    other.close()


@pytest.fixture(scope="module")
def end(other: Other) -> Iterator[End]:
    end = other.connect("shared_memory", None, lambda connection: SharedMemory())
    yield end
    end.peer.close()


def test_values_come_back_equal(end: End) -> None:
    value = {
        "dtypes": [torch.randint(0, 2, (3, 5)).to(dtype) for dtype in DTYPES],
        "shapes": (torch.tensor(2.5), torch.empty(0, 4), torch.rand(4, 6).t()),
        "residuals": Residuals((torch.rand(1, 320, 64, 64), torch.rand(1, 8, 3)), torch.rand(2)),
    }
    end.send("echo", value)
    copy = end.wait("echo")
    for sent, came in zip(value["dtypes"], copy["dtypes"], strict=True):
        assert came.dtype is sent.dtype
        assert torch.equal(came.float(), sent.float())
    assert copy["shapes"][1].shape == (0, 4)
    assert all(map(torch.equal, copy["shapes"], value["shapes"]))
    assert torch.equal(copy["residuals"].down[0], value["residuals"].down[0])


def test_values_without_tensors_and_with_empty_ones_pass(end: End) -> None:
    for number, value in enumerate([None, [], {"x": torch.empty(0)}]):
        end.send("echo", value, number)
    assert end.wait("echo", 0) is None
    assert end.wait("echo", 1) == []
    assert end.wait("echo", 2)["x"].shape == (0,)


def test_memory_does_not_grow_over_many_messages(end: End) -> None:
    sizes = [1_000_000, 400_000, 1_000_000, 90_000]
    for turn in range(200):
        end.send("echo", torch.full((sizes[turn % 4],), float(turn)), turn)
        assert end.wait("echo", turn)[-1] == turn
    assert end.bulk.sending.capacity < 16 * 2**20  # for 500 MB in total
    assert memory_files() < 30


def test_stored_tensors_stay_unchanged(end: End) -> None:
    """A block is reused only after its last view is released."""
    views = []
    for turn in range(5):
        sent = torch.full((50_000,), float(turn))
        end.send("echo", {"all": sent, "more": sent[:10].clone()}, turn)
        sent.zero_()  # the sender may overwrite its tensor
        views.append(end.wait("echo", turn)["all"][7:9])
    for turn in range(5, 20):
        end.send("echo", torch.full((50_000,), float(turn)), turn)
        end.wait("echo", turn)
    assert [view.tolist() for view in views] == [[turn, turn] for turn in range(5)]


def test_messages_arrive_in_the_order_of_sending() -> None:
    first, second = socket.socketpair()
    order: list[int] = []

    class Recording(Mailbox):
        def put(self, address: Address, value: object) -> None:
            order.append(address.output)

    peers = [
        Peer("b", Connection(first), Mailbox(), SharedMemory(), lambda name, why: None),
        Peer("a", Connection(second), Recording(), SharedMemory(), lambda name, why: None),
    ]
    for number in range(100):
        peers[0].send(Address("r", 1, "x", number), torch.zeros(10 ** (number % 6)))
    deadline = time.monotonic() + 5
    while len(order) < 100 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert order == list(range(100))
    for peer in peers:
        peer.close()


def test_a_full_pool_is_an_error_and_not_a_wait() -> None:
    first, second = map(Connection, socket.socketpair())
    mailbox = Mailbox()
    sender = Peer("reader", first, Mailbox(), SharedMemory(1 << 20), lambda name, why: None)
    reader = Peer("sender", second, mailbox, SharedMemory(1 << 20), lambda name, why: None)
    for number in range(3):
        sender.send(Address("r", 1, "x", number), torch.zeros(70_000))
    with pytest.raises(RunError, match="shared memory between two workers"):
        sender.send(Address("r", 1, "x", 3), torch.zeros(70_000))
    while len(mailbox) < 3:
        time.sleep(0.01)
    mailbox.discard("r", 1)  # discarded values make room, also for other sizes
    sender.send(Address("r", 2, "x"), torch.ones(200_000))
    while not mailbox.has(Address("r", 2, "x")):
        time.sleep(0.01)
    assert mailbox.take(Address("r", 2, "x")).sum() == 200_000
    sender.close()
    reader.close()


def test_a_killed_process_is_noticed_and_leaves_nothing(fake_server: ForkServer) -> None:
    files, descriptors = memory_files(), len(descriptors_open())
    other = Other(fake_server)
    end = other.connect("shared_memory", None, lambda connection: SharedMemory())
    end.send("echo", torch.ones(300_000))
    received = end.wait("echo")
    for number in range(3):
        end.send("keep", torch.ones(300_000), number)
    started = time.monotonic()
    os.kill(other.pid, signal.SIGKILL)
    assert end.lost_within(5) and ended_by_the_other(end)
    print(f"noticed after {end.lost[0] - started:.3f} s")
    with pytest.raises(Closed):
        end.send("echo", 1)
    assert received.sum() == 300_000  # received values stay readable
    end.peer.close()
    assert len(end.lost) == 1
    other.close()
    del end, received
    assert memory_files() == files
    assert len(descriptors_open()) == descriptors
    assert not list(Path("/dev/shm").glob("*katz*"))


def test_a_frozen_process_does_not_hold_up_closing(fake_server: ForkServer) -> None:
    other = Other(fake_server)
    end = other.connect("shared_memory", None, lambda connection: SharedMemory())
    end.send("echo", torch.ones(10))
    end.wait("echo")
    os.kill(other.pid, signal.SIGSTOP)
    end.send("echo", torch.ones(10), 1)
    started = time.monotonic()
    end.peer.close()
    assert time.monotonic() - started < 1
    assert end.lost == []  # closed by this process: no loss is reported
    other.close()
