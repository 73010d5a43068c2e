"""Queues frames for one client: in order, bounded, and of running pictures only the newest; and
limits the rate of events. Must not know what frames say.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

TOO_SLOW = (1013, "reads too slowly; connect again for the state of everything")


@dataclass(frozen=True, slots=True)
class ClientFrame:
    """A frame to send. Of frames with the same `slot` only the newest is kept."""

    data: str | bytes
    slot: str = ""


class ByteBudget:
    """Limits the bytes that several outboxes hold together. Above `limit` bytes, those that hold
    most are closed.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._all = limit, 0
        self._held: dict[FrameQueue, int] = {}

    def note(self, outbox: FrameQueue, count: int) -> None:
        """Notes the bytes that wait in an outbox now."""
        self._all += count - self._held.pop(outbox, 0)
        if count:
            self._held[outbox] = count
        while self._all > self._limit:
            max(self._held, key=self._held.__getitem__).close(*TOO_SLOW)


class FrameQueue:
    """Holds one frame of any size and `limit` bytes behind it; what exceeds that closes it."""

    def __init__(self, limit: int, budget: ByteBudget) -> None:
        self._limit, self._bytes, self._count, self._budget = limit, 0, 0, budget
        # by number; a dict is slow to find its first
        self._frames: OrderedDict[int, ClientFrame] = OrderedDict()
        self._slots: dict[str, int] = {}
        self._changed, self._closed = asyncio.Event(), asyncio.Event()
        self.end: tuple[int, str] | None = None  # close code and reason of RFC 6455, section 7.4.1

    def __len__(self) -> int:
        """Counts the frames that wait."""
        return len(self._frames)

    def put(self, frame: ClientFrame) -> None:
        """Adds a frame; never waits. Keeps nothing after the end."""
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
        """Removes the oldest frame and returns it."""
        return self._drop(next(iter(self._frames))) if self._frames else None

    def close(self, code: int, reason: str) -> None:
        """Drops the frames that wait. The first reason counts."""
        if self.end is None:
            self.end = (code, reason)
            self._frames.clear()
            self._slots.clear()
            self._bytes = 0
            self._budget.note(self, 0)
            self._closed.set()
            self._changed.set()

    def wake(self) -> None:
        """Wakes whoever waits in `changed`."""
        self._changed.set()

    async def changed(self) -> None:
        """Returns when something was put in, or the end came, since the last time."""
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
    """Allows `rate` events a second, and `burst` at once after a rest, by a token bucket (RFC 2697,
    section 2, with one rate). `clock` is in seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._tokens, self._filled = burst, clock()

    def take(self, cost: float = 1.0) -> bool:
        """Takes tokens if the bucket has enough; False if not. A cost above the burst takes a full
        bucket, and the rest of it as debt.
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
