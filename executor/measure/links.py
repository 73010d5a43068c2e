"""Times transfers between two workers, and computes the link's latency and bandwidth. One worker
runs `ask`, the other `answer`, both as units of their fair queues.
"""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from katz_graph.core.errors import RunError
from katz_graph.executor.calls.batching import received
from katz_graph.executor.measure.store import DISTURBED, CostStore
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.mailbox import Address, Mailbox
from katz_graph.executor.transport.peer import Peer
from katz_graph.executor.transport.transports import transports_for
from katz_graph.host.schedule import Scheduled, scheduled_with_neighbours
from katz_graph.ir.device import NetworkLink

if TYPE_CHECKING:
    from katz_graph.executor.cluster.driver import Cluster
    from katz_graph.executor.worker.models import DeviceModels


REQUEST = "probe"
ROUNDS = 20  # round trips of small messages to time the way back of an answer
MAILBOX_POLL_S = 2e-5  # seconds between checks of the mailbox
TIMEOUT = 60.0  # seconds for a transfer


class Partner(Protocol):
    """Gives access to the connections and the device of a worker."""

    @property
    def mailbox(self) -> Mailbox: ...

    @property
    def peers(self) -> Mapping[str, Peer]: ...

    @property
    def models(self) -> DeviceModels: ...


def ask(worker: Partner, peer: str, attempt: int) -> tuple[NetworkLink, bool]:
    """Measures the link to a peer that runs `answer` with the same attempt number. Returns the
    link, and whether other programs took processor time.
    """
    before = scheduled_with_neighbours(os.getppid())
    with probing(worker, peer, attempt) as probe:
        return measure_link(probe), _was_disturbed(before)


@contextmanager
def probing(worker: Partner, peer: str, attempt: int) -> Iterator[Probe]:
    """Yields a function that times transfers to a peer that runs `answer` with the same attempt
    number, from device to device.
    """
    numbers = iter(range(1 << 30))

    def there_and_back(size: int) -> float:
        number = next(numbers)
        payload = torch.zeros(size, dtype=torch.uint8, device=worker.models.device)
        _finish(worker.models.device)
        started = time.perf_counter()
        worker.peers[peer].send(Address(REQUEST, attempt, "ask", number), payload)
        _wait(worker, peer, Address(REQUEST, attempt, "answer", number))
        return time.perf_counter() - started

    try:
        back = min(there_and_back(LATENCY_MESSAGE_BYTES) for _ in range(ROUNDS)) / 2
        yield lambda size: there_and_back(size) - back
    finally:
        with suppress(Closed):
            worker.peers[peer].send(Address(REQUEST, attempt, "ask", next(numbers)), None)
        worker.mailbox.discard(REQUEST, attempt)


def answer(worker: Partner, peer: str, attempt: int) -> bool:
    """Answers each transfer when its payload is on this worker's device, until an empty one
    arrives. Returns whether other programs took processor time.
    """
    before = scheduled_with_neighbours(os.getppid())
    number = 0
    while (payload := _wait(worker, peer, Address(REQUEST, attempt, "ask", number))) is not None:
        received(payload, worker.models.device)
        _finish(worker.models.device)
        worker.peers[peer].send(Address(REQUEST, attempt, "answer", number), True)
        number += 1
    worker.mailbox.discard(REQUEST, attempt)
    return _was_disturbed(before)


def _was_disturbed(before: Scheduled) -> bool:
    return (scheduled_with_neighbours(os.getppid()) - before).share_disturbed > DISTURBED


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _wait(worker: Partner, peer: str, address: Address) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while not worker.mailbox.has(address):
        if worker.peers[peer].ended and not worker.mailbox.has(address):
            raise Closed(f"the connection with {peer} has ended")
        if time.monotonic() > deadline:
            raise RunError(f"no data arrived over a link within {TIMEOUT:g} s")
        time.sleep(MAILBOX_POLL_S)
    return worker.mailbox.take(address)


def way_between(source: str, target: str, transport: str) -> str:
    """Returns the store's name for transfers between two devices of one host, given their torch
    names. Copies to and from GPUs are included.
    """
    one, other = torch.device(source), torch.device(target)
    if one.type == other.type == "cpu":
        return transport
    same = one.type == other.type and (one.index or 0) == (other.index or 0)
    return f"{transport}, {one.type} to {other.type}" + (", one GPU" if same else "")


def ways_between(source: str, target: str) -> list[str]:
    """Returns the store's names for the transports that may be used, in order of preference."""
    kinds = [torch.device(device).type for device in (source, target)]
    return [way_between(source, target, name) for name in transports_for(True, kinds)]


def known_links(
    cluster: Cluster, store: CostStore, again: bool = False
) -> Mapping[tuple[str, str], NetworkLink]:
    """Returns the links between all devices in both directions. Links on one host are measured once
    per pair of device kinds, and again with `again` or if other programs disturbed the stored
    measurement. Links over a network are always measured.
    """
    links: dict[tuple[str, str], NetworkLink] = {}
    host = socket.gethostname()
    fresh: set[str] = set()
    for source, target in itertools.permutations(cluster.assignments, 2):
        one_host = cluster.on_one_host(source, target)
        way = way_between(
            cluster.assignments[source].device,
            cluster.assignments[target].device,
            cluster.transport(source, target),
        )
        is_fresh = way in fresh or not (again or store.wants_link(host, host, way))
        known = store.link(host, host, way) if one_host and is_fresh else None
        if known is None:
            known, disturbed = _measured(cluster, source, target)
            if one_host:
                fresh.add(way)
                store.keep_link(host, host, way, known, disturbed)
        links[source, target] = known
    return links


def _measured(cluster: Cluster, source: str, target: str) -> tuple[NetworkLink, bool]:
    # increasing, because a mailbox drops all attempts up to the last discarded one
    number = time.monotonic_ns()
    with ThreadPoolExecutor(1) as pool:
        answering = pool.submit(cluster.call, target, "answer", source, number)
        link, disturbed = cluster.call(source, "ask", target, number).value
        return link, disturbed or answering.result().value


PROBES: Mapping[str, Callable[..., Any]] = {"ask": ask, "answer": answer}


Probe = Callable[[int], float]
"""Sends a number of bytes one way. Returns the seconds until the peer has all bytes."""

LATENCY_MESSAGE_BYTES = 64  # bytes of a latency-bound message
MIN_TRANSFER_BYTES, MAX_TRANSFER_BYTES = 1 << 16, 1 << 26
MIN_TIMED_TRANSFER_S = 0.05  # minimum seconds of a timed transfer
REPEATS, MIN_REPEATS = 7, 3
WARM_UP = 2  # repeats that do not count
BUDGET = 3.0  # seconds of transfers after which MIN_REPEATS repeats suffice


def measure_link(probe: Probe) -> NetworkLink:
    """Measures latency as the median of small messages, and bandwidth from the difference between
    full-size and quarter-size transfers.

    Traffic shapers send the first bytes, a token bucket, at full speed before they limit the rate.
    So sizes grow until a transfer takes 50 ms, which empties the bucket, and long transfers follow
    without pauses that would refill it. If a bucket holds several long transfers, the link is
    measured as too fast.
    """
    latency = statistics.median(probe(LATENCY_MESSAGE_BYTES) for _ in range(REPEATS))
    size = MIN_TRANSFER_BYTES
    while size < MAX_TRANSFER_BYTES and probe(size) < MIN_TIMED_TRANSFER_S:
        size *= 2
    quarters: list[float] = []
    wholes: list[float] = []
    while len(wholes) < MIN_REPEATS or (
        len(wholes) < REPEATS and sum(wholes) + sum(quarters) < BUDGET
    ):
        wholes.append(probe(size))
        quarters.append(probe(size // 4))
    skipped = min(WARM_UP, len(wholes) // 2)
    whole, quarter = statistics.median(wholes[skipped:]), statistics.median(quarters[skipped:])
    longer = whole - quarter
    bytes_per_second = (size - size // 4) / longer if longer > 0 else size / whole
    return NetworkLink(bytes_per_second, latency)
