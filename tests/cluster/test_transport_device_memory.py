"""Values sent through device memory, for which files stand in, arrive equal and in order. The
memory is reused, freed when both processes have released it, and not needed.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from other_process import End, Other, descriptors_open
from other_side import device_transport
from processes import eventually

from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.measure.links import probing
from katz_graph.executor.transport.codec import Closed, decode, encode
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.device_memory import LIMIT

MEBI = 1 << 20


@pytest.fixture
def other(fake_server: ForkServer) -> Iterator[Other]:
    other = Other(fake_server)
    yield other
    other.close()


def connected(
    other: Other, folder: Path, here: Any = None, there: Any = None, limit: int = LIMIT
) -> End:
    """Connects two ends; `here` and `there` are their options."""
    options: Any = {"folder": str(folder), "limit": limit}
    return other.connect(
        "device",
        options | (there or {}),
        lambda connection: device_transport(connection, **options, **(here or {})),
    )


def allocations(folder: Path) -> list[Path]:
    """Returns the memory of this process."""
    return list(folder.glob(f"{os.getpid()}-*"))


def test_values_arrive_equal_and_reuse_memory(other: Other, tmp_path: Path) -> None:
    end = connected(other, tmp_path)
    picture = torch.rand(2, 8, 16, 16).contiguous(memory_format=torch.channels_last)
    end.send("echo", {"all": (picture, torch.empty(0, 3)), "half": torch.rand(9).half()})
    came = end.wait("echo")["all"]
    assert torch.equal(came[0], picture) and came[0].stride() == picture.stride()
    assert came[1].shape == (0, 3)
    views = []
    for turn in range(24):
        sent = torch.full((1_000_000 if turn % 2 else 700_000,), float(turn))
        end.send("echo", sent, turn)
        sent.zero_()  # the sender may overwrite its tensor
        came = end.wait("echo", turn)
        assert came.min() == came.max() == turn
        if turn < 2:
            views.append(came[7:9])
    assert [view.tolist() for view in views] == [[turn, turn] for turn in range(2)]
    assert sum(path.stat().st_size for path in allocations(tmp_path)) <= 24 * MEBI
    end.peer.close()


def test_full_device_memory_is_no_error(other: Other, tmp_path: Path) -> None:
    """Values pass through shared memory until the receiver has released others."""
    end = connected(other, tmp_path, limit=8 * MEBI)
    os.kill(other.pid, signal.SIGSTOP)
    for number in range(9):
        end.send("echo", torch.full((500_000,), float(number)), number)
    os.kill(other.pid, signal.SIGCONT)
    came = [end.wait("echo", number) for number in range(9)]
    assert [value[-1] for value in came] == list(range(9))
    assert end.bulk.shared.sending.capacity > 0
    for number in (9, 10):
        end.send("echo", torch.ones(1_500_000), number)  # the first needs another segment
        assert end.wait("echo", number).sum() == 1_500_000
    assert sum(path.stat().st_size for path in allocations(tmp_path)) <= 8 * MEBI
    end.peer.close()


@pytest.mark.parametrize(
    ("refusing", "what", "direct"),
    [("here", "allocate", 0), ("there", "open", 0), ("here", "open", 1), ("there", "allocate", 1)],
)
def test_memory_that_cannot_be_opened_is_not_needed(
    other: Other, tmp_path: Path, refusing: str, what: str, direct: int
) -> None:
    """Only the affected direction uses shared memory, and says why in one line."""
    options: Any = {refusing: {"refuses": {what: "no such namespace"}}}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        end = connected(other, tmp_path, **options)
        for number in range(3):
            end.send("echo", torch.full((300_000,), float(number)), number)
            assert end.wait("echo", number).max() == number
    assert end.bulk.transport == ("CUDA IPC" if direct else "shared memory")
    assert len(warned) == 1 - direct and bool(allocations(tmp_path)) == bool(direct)
    assert all("(no such namespace)" in str(warning.message) for warning in warned)
    end.peer.close()


def test_memory_is_freed_when_the_receiver_has_released_it(tmp_path: Path) -> None:
    """The sender has closed its end before."""
    connections = [Connection(end) for end in socket.socketpair()]
    with ThreadPoolExecutor() as pool:
        sender, receiver = pool.map(
            lambda one: device_transport(one, folder=str(tmp_path)), connections
        )
    sender.take(connections[0], encode(torch.full((100_000,), 5.0)))()
    came = decode(*receiver.receive(connections[1].receive_message()))
    sender.close()
    receiver.close()
    time.sleep(0.1)
    assert came.min() == came.max() == 5.0
    del came
    eventually(lambda: not list(tmp_path.iterdir()), 5)
    for connection in connections:
        connection.close()


def send_until_killed(other: Other, folder: Path, chance: random.Random) -> None:
    end = connected(other, folder, limit=6 * MEBI)
    killing = threading.Timer(chance.uniform(0, 0.05), os.kill, [other.pid, signal.SIGKILL])
    killing.start()
    with pytest.raises(Closed):
        for number in range(100_000):
            operation = chance.choice(["echo", "keep", "size"])
            end.send(operation, torch.ones(chance.choice([10, 1000, 400_000])), number)
    assert end.lost_within(5)
    end.peer.close()
    killing.join()


def test_a_measurement_ends_when_the_peer_is_killed(other: Other, tmp_path: Path) -> None:
    end = connected(other, tmp_path)
    worker: Any = SimpleNamespace(
        mailbox=end.mailbox,
        peers={"other": end.peer},
        models=SimpleNamespace(device=torch.device("cpu")),
    )
    threading.Timer(0.1, os.kill, [other.pid, signal.SIGKILL]).start()
    started = time.monotonic()
    with pytest.raises(Closed), probing(worker, "other", 1):
        pass
    assert time.monotonic() - started < 5
    end.peer.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_process_killed_at_any_message_leaves_nothing(
    fake_server: ForkServer, tmp_path: Path, seed: int
) -> None:
    chance, threads = random.Random(seed), threading.active_count()
    descriptors = sorted(descriptors_open())
    other = Other(fake_server)
    if seed == 0:
        os.kill(other.pid, signal.SIGKILL)
        with pytest.raises(Closed):
            connected(other, tmp_path)
    else:
        send_until_killed(other, tmp_path, chance)
    other.close()
    gc.collect()
    eventually(lambda: not allocations(tmp_path), 5)
    eventually(lambda: threading.active_count() <= threads, 5)
    assert sorted(descriptors_open()) == descriptors
