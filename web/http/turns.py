"""Limits concurrent requests; addresses take turns. Must not know the requests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from katz_graph.web.rounds import Rounds


class Turns:
    """Limits the number of places in use. One address gets all but one of them, so that other
    addresses need not wait for it.
    """

    def __init__(self, places: int) -> None:
        self._free, self._of_one = places, max(1, places - 1)
        self._held: Counter[str] = Counter()
        self._waiting = Rounds[asyncio.Future[None]]()

    async def enter(self, address: str) -> None:
        """Waits for a place; `leave` releases it."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.add(address, turn)
        self._pass_on()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the place was granted before the cancellation
                self.leave(address)
            raise

    def leave(self, address: str) -> None:
        self._free += 1
        self._held[address] -= 1
        self._held += Counter()  # drops addresses without a place
        self._pass_on()

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Holds a place during the `async with` statement."""
        await self.enter(address)
        try:
            yield
        finally:
            self.leave(address)

    def _pass_on(self) -> None:
        while self._free and (next_one := self._waiting.take(self._may_have_one)) is not None:
            address, turn = next_one
            if not turn.cancelled():
                turn.set_result(None)
                self._free -= 1
                self._held[address] += 1

    def _may_have_one(self, address: str) -> bool:
        return self._held[address] < self._of_one
