"""Queues frames for one client: in order, bounded, and only the newest preview of a job. Also
limits event rates. Must not know the content of frames.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

TOO_SLOW = (1013, "reads too slowly; reconnect to get the full state")


@dataclass(frozen=True, slots=True)
class ClientFrame:
    """Holds a frame to send. Of unsent frames with the same `slot`, only the newest is sent."""

    data: str | bytes
    slot: str = ""


class ByteBudget:
    """Limits the bytes of all outboxes together. Above `limit`, closes the outboxes with the most
    bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._all = limit, 0
        self._held: dict[FrameQueue, int] = {}

    def note(self, outbox: FrameQueue, count: int) -> None:
        """Updates the number of bytes that wait in an outbox."""
        self._all += count - self._held.pop(outbox, 0)
        if count:
            self._held[outbox] = count
        while self._all > self._limit:
            max(self._held, key=self._held.__getitem__).close(*TOO_SLOW)


class FrameQueue:
    """Holds one frame of any size, and further frames of up to `limit` bytes in total. Closes when
    the limit is exceeded.
    """

    def __init__(self, limit: int, budget: ByteBudget) -> None:
        self._limit, self._bytes, self._count, self._budget = limit, 0, 0, budget
        # by number; an OrderedDict because finding a dict's first key is slow
        self._frames: OrderedDict[int, ClientFrame] = OrderedDict()
        self._slots: dict[str, int] = {}
        self._changed, self._closed = asyncio.Event(), asyncio.Event()
        self.end: tuple[int, str] | None = None  # close code and reason of RFC 6455, section 7.4.1

    def __len__(self) -> int:
        """Counts the waiting frames."""
        return len(self._frames)

    def put(self, frame: ClientFrame) -> None:
        """Adds a frame without waiting. Drops it after the end."""
        if self.end is not None:
            return
        if frame.slot in self._slots:
            self._drop(self._slots[frame.slot])
        if self._frames:
            oldest = next(iter(self._frames.values()))
            if self._bytes - len(oldest.data) + len(frame.data) > self._limit:
                self.close(*TOO_SLOW)
                return
        self._count += 1
        self._frames[self._count] = frame
        self._bytes += len(frame.data)
        if frame.slot:
            self._slots[frame.slot] = self._count
        self._changed.set()
        self._budget.note(self, self._bytes)

    def pop(self) -> ClientFrame | None:
        return self._drop(next(iter(self._frames))) if self._frames else None

    def close(self, code: int, reason: str) -> None:
        """Drops the queued frames. Only the first close code and reason count."""
        if self.end is None:
            self.end = (code, reason)
            self._frames.clear()
            self._slots.clear()
            self._bytes = 0
            self._budget.note(self, 0)
            self._closed.set()
            self._changed.set()

    def wake(self) -> None:
        """Wakes the task that waits in `changed`."""
        self._changed.set()

    async def changed(self) -> None:
        """Returns when a frame was added, or the queue closed, since the last call."""
        await self._changed.wait()
        self._changed.clear()

    async def closed(self) -> tuple[int, str]:
        await self._closed.wait()
        assert self.end is not None
        return self.end

    def _drop(self, number: int) -> ClientFrame:
        frame = self._frames.pop(number)
        self._bytes -= len(frame.data)
        self._budget.note(self, self._bytes)
        if frame.slot:
            del self._slots[frame.slot]
        return frame


class RateLimit:
    """Allows `rate` events a second, and bursts of `burst`, with a token bucket (RFC 2697, section
    2, with one rate). `clock` is in seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._filled = burst, clock()

    def take(self, cost: float = 1.0) -> bool:
        """Takes tokens; returns False if the bucket has too few. A cost above the burst needs a
        full bucket and leaves the rest as debt.
        """
        if self.wait(cost) > 0:
            return False
        self._tokens -= cost
        return True

    def wait(self, cost: float = 1.0) -> float:
        """Returns the seconds until `take` would succeed."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        return max(0.0, (min(cost, self._burst) - self._tokens) / self._rate)
