"""What waits to be sent to one client: in order, bounded, and of running pictures only the newest. Knows nothing of what frames say."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

TOO_SLOW = (1013, "reads too slowly; connect again for the state of everything")


@dataclass(frozen=True, slots=True)
class Frame:
    """Of frames with the same `slot` only the newest is kept."""

    data: str | bytes
    slot: str = ""


class Outbox:
    """Holds one frame of any size and `limit` bytes behind it; what exceeds that closes it."""

    def __init__(self, limit: int) -> None:
        self._limit, self._bytes, self._count = limit, 0, 0
        self._frames: OrderedDict[int, Frame] = OrderedDict()  # by number; a dict is slow to find its first
        self._slots: dict[str, int] = {}
        self._changed, self._closed = asyncio.Event(), asyncio.Event()
        self.end: tuple[int, str] | None = None  # close code and reason of RFC 6455, section 7.4.1

    def put(self, frame: Frame) -> None:
        """Never waits. Nothing is kept after the end."""
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

    def pop(self) -> Frame | None:
        """The oldest frame."""
        return self._drop(next(iter(self._frames))) if self._frames else None

    def close(self, code: int, reason: str) -> None:
        """Forget what waits. The first reason counts."""
        if self.end is None:
            self.end = (code, reason)
            self._frames.clear()
            self._slots.clear()
            self._closed.set()
            self._changed.set()

    def wake(self) -> None:
        """Let who waits for a change look again."""
        self._changed.set()

    async def changed(self) -> None:
        """Returns when something was put in, or the end came, since the last time."""
        await self._changed.wait()
        self._changed.clear()

    async def closed(self) -> tuple[int, str]:
        await self._closed.wait()
        assert self.end is not None
        return self.end

    def _drop(self, number: int) -> Frame:
        frame = self._frames.pop(number)
        self._bytes -= len(frame.data)
        if frame.slot:
            del self._slots[frame.slot]
        return frame
