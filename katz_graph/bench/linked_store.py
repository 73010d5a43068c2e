"""Reads a store of templates over a link of a given speed, for benches.

The link's clock is that of a device's thread, without the seconds for which this waits for a
processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.templates.store import Template, TemplateStore
from katz_graph.host.schedule import THREADS

FREE = 1e15  # bytes per second
POLL_INTERVAL_S = 1e-3


class Clock:
    """Counts seconds except those for which a thread of this process waits for a processor."""

    def __init__(self, thread: int | None) -> None:
        self._statistics = THREADS / str(thread) / "schedstat"

    @classmethod
    def of_device(cls, engine: DeviceEngine) -> Clock:
        (name,) = engine.cluster.assignments
        (thread,) = (one for one in threading.enumerate() if one.name == f"katz-{name}")
        return cls(thread.native_id)

    def now(self) -> float:
        try:
            waited = int(self._statistics.read_text().split()[1])
        except OSError:  # the kernel reports none
            waited = 0
        return time.perf_counter() - waited / 1e9


@dataclass(slots=True)
class Reader:
    """A thread that reads over a link: the arrival of its last bytes, and when it went on."""

    clock: Clock
    arrived: float
    went_on: float


class Link:
    """Transfers bytes one after the other at `rate` bytes per second, by a device's clock. Threads
    share it. One that awakes late asks for its next bytes as if it had not.
    """

    def __init__(self, clock: Clock) -> None:
        self.rate = FREE
        self._clock, self._free, self._lock = clock, 0.0, threading.Lock()
        self._readers: dict[int, Reader] = {}

    def transfer(self, size: int) -> None:
        """Waits until the link has transferred `size` more bytes."""
        thread = threading.get_native_id()
        reader = self._readers.get(thread)
        if reader is None:
            own, now = Clock(thread), self._clock.now()
            reader = self._readers[thread] = Reader(own, now, own.now())
        on_time = reader.arrived + reader.clock.now() - reader.went_on
        asked = min(self._clock.now(), on_time)
        with self._lock:
            self._free = reader.arrived = max(self._free, asked) + size / self.rate
        while (seconds := reader.arrived - self._clock.now()) > 0:
            time.sleep(max(seconds, POLL_INTERVAL_S))
        reader.went_on = reader.clock.now()


class LinkedStore:
    """Reads a store over a link."""

    def __init__(self, store: TemplateStore, link: Link) -> None:
        self._store, self._link = store, link

    @contextmanager
    def use(self, name: str) -> Iterator[LinkedTemplate | None]:
        with self._store.use(name) as found:
            yield None if found is None else LinkedTemplate(found, self._link)


class LinkedTemplate:
    """Reads a template over a link."""

    def __init__(self, template: Template, link: Link) -> None:
        self._template, self._link = template, link
        self.layers = template.layers

    def read(self, evaluation: int, layer: str) -> Tensor:
        self._link.transfer(self.layers(evaluation)[layer].nbytes)
        return self._template.read(evaluation, layer)
