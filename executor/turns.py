"""Whose turn it is on a device: deficit round robin in seconds (Shreedhar and Varghese 1995), charged after the work.

Knows nothing of what is done: flows are any hashable names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

STAY = 8  # times as long as a switch took, its flows have what is there: switching takes at most a ninth of the time
SHARE = 0.05  # seconds that every waiting flow is given in a round


class Turns(Generic[Flow]):
    """Flows take turns such that each gets an equal share of the device's seconds while it has something to do.

    Seconds taken beyond the share are a debt that stays; a share that a flow did not use, because it had nothing to do, is lost. What some
    flows need and others do not, and takes long to bring (weights), stays until it was used STAY times as long as bringing it took. So a
    flow that did its share waits for no more than STAY + 1 switches and a unit of work of each other flow.
    """

    def __init__(self) -> None:
        self._credit: dict[Flow, float] = {}  # seconds, in the order of turns
        self._switch = 0.0  # seconds that the last switch took
        self._used = 0.0  # seconds of work since

    def join(self, flow: Flow) -> None:
        """A new flow begins with no debt, and last."""
        self._credit[flow] = 0.0

    def leave(self, flow: Flow) -> None:
        del self._credit[flow]

    def choose(self, ready: Iterable[Flow], preferred: Callable[[Flow], bool] = lambda flow: True) -> Flow:
        """The next of the flows that have something to do, in turn, of those with credit.

        Preferred ones, for which what they need is there, come first, even in debt, as long as it stays.
        """
        waiting = set(ready)
        for flow in self._credit:
            if flow not in waiting:
                self._credit[flow] = min(self._credit[flow], 0.0)
        shortest = -max(self._credit[flow] for flow in waiting)
        if shortest >= 0:
            given = (int(shortest / SHARE) + 1) * SHARE
            self._credit |= {flow: self._credit[flow] + given for flow in waiting}
        turns = [flow for flow in self._credit if flow in waiting]
        able = [flow for flow in turns if self._credit[flow] > 0]
        liked = [flow for flow in (*able, *turns) if preferred(flow)]
        return liked[0] if liked and self._used < STAY * self._switch else able[0]

    def charge(self, flow: Flow, seconds: float, switch: float = 0.0) -> None:
        """Book what a flow took, and put it behind the others. `switch`: of those seconds, what went into bringing what it needs."""
        self._credit[flow] = self._credit.pop(flow) - seconds
        if switch:
            self._switch, self._used = switch, 0.0
        self._used += seconds - switch
