"""Values arrive equal and in order, over process groups of two or inline in messages. A dead
process is detected; the next generation's group works.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from other_process import End, Other, descriptors_open, ended_by_the_other

from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.transport.bulk import Inline
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.pair import PairGroups, join
from katz_graph.executor.transport.peer import Peer
from katz_graph.ir.values import Residuals

ADDRESS = "127.0.0.1"


def pair_with(other: Other, generation: int, timeout: float = 10.0) -> End:
    body = {"address": ADDRESS, "generation": generation, "timeout": timeout}
    return other.connect("pair", body, lambda connection: join(connection, True, **body))


@pytest.fixture
def start(fake_server: ForkServer) -> Iterator[Callable[[], Other]]:
    """Returns a function that starts other processes, which end with the test."""
    started: list[Other] = []

    def start() -> Other:
        started.append(Other(fake_server))
        return started[-1]

    yield start
    for other in started:
        other.close()


def echo(end: End, count: int) -> None:
    for turn in range(count):  # alternates large and small values
        end.send(
            "echo",
            Residuals(
                (
                    torch.full((400_000 if turn % 2 else 1000,), float(turn)),
                    torch.rand(3, 4).half(),
                ),
                torch.empty(0),
            ),
            turn,
        )
    for turn in range(count):
        residuals = end.wait("echo", turn)
        assert (residuals.down[0] == turn).all()
        assert (residuals.down[1].dtype, residuals.mid.shape) == (torch.float16, (0,))


def test_the_next_generation_starts_next_to_a_dead_one(start: Callable[[], Other]) -> None:
    other = start()
    descriptors = len(descriptors_open())
    first = pair_with(other, 1)
    echo(first, 30)
    started = time.monotonic()
    os.kill(other.pid, signal.SIGKILL)
    assert first.lost_within(5) and ended_by_the_other(first)
    print(f"noticed after {first.lost[0] - started:.3f} s")
    with pytest.raises(Closed):
        first.send("echo", torch.ones(10))
    another = start()
    second = pair_with(another, 2)
    first.peer.close()
    echo(second, 30)
    assert len(first.lost) == 1
    assert second.lost == []
    second.peer.close()
    another.close()
    del first, second
    gc.collect()  # the ends are in reference cycles
    assert len(descriptors_open()) <= descriptors + 2  # the pipe that libuv creates once


def test_a_kill_within_a_transfer_is_noticed(start: Callable[[], Other]) -> None:
    other = start()
    end = pair_with(other, 1)
    echo(end, 1)
    os.kill(other.pid, signal.SIGSTOP)
    end.send("keep", torch.zeros(25_000_000))
    time.sleep(0.2)
    assert end.lost == []
    os.kill(other.pid, signal.SIGKILL)
    assert end.lost_within(5) and ended_by_the_other(end)
    end.peer.close()


def test_a_frozen_process_is_lost_after_the_timeout(start: Callable[[], Other]) -> None:
    other = start()
    end = pair_with(other, 1, timeout=1.0)
    echo(end, 1)
    os.kill(other.pid, signal.SIGSTOP)
    began = time.monotonic()
    end.send("keep", torch.zeros(25_000_000))
    assert end.lost_within(20) and not ended_by_the_other(end)
    assert "Timed out" in end.reasons[0] and end.lost[0] - began > 0.9
    end.peer.close()


def two_ends(first: Any, second: Any) -> tuple[tuple[Connection, Any], tuple[Connection, Any]]:
    """Calls `first` and `second` concurrently on the two ends of a connection; returns each end
    with its result.
    """
    connections = tuple(map(Connection, socket.socketpair()))
    made: dict[int, Any] = {}
    thread = threading.Thread(target=lambda: made.update({1: second(connections[1])}))
    thread.start()
    made[0] = first(connections[0])
    thread.join()
    return (connections[0], made[0]), (connections[1], made[1])


def joined(hosts: bool) -> Any:
    return lambda connection: join(connection, hosts, ADDRESS, 1, 5.0)


@pytest.mark.parametrize("kind", ["pair", "inline"])
def test_both_directions_at_once_keep_order_and_a_snapshot(kind: str) -> None:
    inline = lambda connection: Inline()  # noqa: E731
    ends = two_ends(joined(True), joined(False)) if kind == "pair" else two_ends(inline, inline)
    order: list[list[tuple[int, float]]] = [[], []]

    class Recording(Mailbox):
        def __init__(self, side: int) -> None:
            super().__init__()
            self.side = side

        def put(self, address: Address, value: Any) -> None:
            order[self.side].append((address.output, float(value[-1])))

    peers = [
        Peer("other", *end[:1], Recording(side), end[1], lambda name, why: None)
        for side, end in enumerate(ends)
    ]

    def send(peer: Peer) -> None:
        tensor = torch.zeros(300_000)
        for number in range(40):
            tensor.fill_(number)
            peer.send(Address("r", 1, "x", number), tensor)

    threads = [threading.Thread(target=send, args=(peer,)) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    deadline = time.monotonic() + 10
    while min(map(len, order)) < 40 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert order == [[(number, float(number)) for number in range(40)]] * 2
    for peer in peers:
        peer.close()
    assert not [
        thread for thread in threading.enumerate() if thread.name in ("from other", "to other")
    ]


def test_a_sender_does_not_wait_for_a_slow_link_until_the_queue_is_full() -> None:
    """The other end does not read. Eight messages and the one in transfer are accepted immediately,
    the next one blocks until the peer is closed.
    """
    first, second = socket.socketpair()
    peer = Peer("other", Connection(first), Mailbox(), Inline(), lambda name, why: None)
    started = time.monotonic()
    for number in range(8):
        peer.send(Address("r", 1, "x", number), torch.zeros(1_000_000))
    assert time.monotonic() - started < 5  # a blocked send would never return
    outcome: list[str] = []

    def send_more() -> None:
        try:
            for number in range(8, 20):
                peer.send(Address("r", 1, "x", number), torch.zeros(1_000_000))
        except Closed:
            outcome.append("closed")

    thread = threading.Thread(target=send_more)
    thread.start()
    thread.join(0.5)
    assert thread.is_alive()
    peer.close()
    thread.join(2)
    assert outcome == ["closed"]
    second.close()


@pytest.mark.parametrize("hosts", [True, False])
def test_a_side_that_never_comes_is_given_up(hosts: bool) -> None:
    first, second = socket.socketpair()
    started = time.monotonic()
    with pytest.raises(Closed, match=r"could not be created|no rendezvous address"):
        join(Connection(first), hosts, ADDRESS, 1, 1.0)
    assert time.monotonic() - started < 5
    first.close()
    second.close()


def test_groups_listen_at_the_given_address_only() -> None:
    (first, groups), (second, _) = two_ends(joined(True), joined(False))
    assert isinstance(groups, PairGroups)
    listening = {
        socket.inet_ntoa(bytes.fromhex(local.split(":")[0])[::-1])
        for local in _listening("/proc/net/tcp")
    }
    assert listening == {ADDRESS}
    assert _listening("/proc/net/tcp6") == []
    first.close()
    second.close()


def _listening(table: str) -> list[str]:
    """Returns the local addresses on which this process listens."""
    own = {link.removeprefix("socket:[").removesuffix("]") for link in descriptors_open()}
    rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and row[9] in own]
