"""Times transfers between two processes that share a device, through the transport that workers
use.
"""

from __future__ import annotations

import itertools
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from katz_graph.executor.measure.links import Probe, answer, probing
from katz_graph.executor.transport.bulk import Meeting
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.mailbox import Mailbox
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.transport.transports import open_bulk, transports_for

ATTEMPT = 1
RESIDUAL_BYTES = 108_000_000  # of a ControlNet's residuals at 1024 x 1024 with guidance
TRANSFERS = 1000  # during which a process is killed


@dataclass(frozen=True, slots=True)
class DevicePair:
    """Two processes on one device. `transport`: the transport to the other process. `probe`: sends
    a number of bytes from device to device and returns the seconds.
    """

    transport: str
    probe: Probe
    process: subprocess.Popen[bytes]


@contextmanager
def device_pair(device: str) -> Iterator[DevicePair]:
    """Starts a second process on a device, given torch's name, and connects it with this one."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, device, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
        )
    try:
        worker = _worker(device, ours, hosts=True)
        try:
            with probing(worker, "peer", ATTEMPT) as probe:
                yield DevicePair(worker.transport, probe, process)
        finally:
            worker.peers["peer"].close()
    finally:
        process.kill()
        process.wait()


def seconds_until_noticed(pair: DevicePair, seed: int) -> float:
    """Kills the other process at a random moment of TRANSFERS transfers. Returns the seconds until
    this process notices.
    """
    chance, killed = random.Random(seed), list[float]()

    def kill() -> None:
        killed.append(time.perf_counter())
        pair.process.kill()

    last = chance.randrange(TRANSFERS)
    with suppress(Closed):
        for number in itertools.count():
            if number == last:
                threading.Timer(chance.uniform(0, 1e-3), kill).start()
            pair.probe(chance.choice([64, 1 << 20, RESIDUAL_BYTES]))
    return time.perf_counter() - killed[0]


def _worker(device: str, connected: socket.socket, hosts: bool) -> Any:
    """Returns the parts of a worker that a measurement of its link needs."""
    place, mailbox = torch.device(device), Mailbox()
    connection = Connection(connected)
    name = transports_for(True, [place.type, place.type])[0]
    bulk = open_bulk(name, connection, Meeting(hosts, "127.0.0.1", 0, place))
    peer = Peer("peer", connection, mailbox, bulk, lambda *_: None)
    return SimpleNamespace(
        mailbox=mailbox,
        peers={"peer": peer},
        models=SimpleNamespace(device=place),
        transport=bulk.transport,
    )


def main() -> None:
    device, descriptor = sys.argv[1:]
    worker = _worker(device, socket.socket(fileno=int(descriptor)), hosts=False)
    answer(worker, "peer", ATTEMPT)


if __name__ == "__main__":
    main()
