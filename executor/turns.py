"""Whose turn it is on a device: deficit round robin in seconds (Shreedhar and Varghese 1995), charged after the work.

Knows nothing of what is done: flows are any hashable names.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

PATIENCE = 4  # turns that a flow lets others pass whose weights are there already
SHARE = 0.05  # seconds that every waiting flow is given in a round


class Turns(Generic[Flow]):
    """Flows take turns such that each gets an equal share of the device's seconds while it has something to do.

    Seconds taken beyond the share are a debt that stays; a share that a flow did not use, because it had nothing to do, is lost.
    """

    def __init__(self) -> None:
        self._credit: dict[Flow, float] = {}  # seconds, in the order of turns
        self._passed: dict[Flow, int] = {}

    def join(self, flow: Flow) -> None:
        """A new flow begins with no debt, and last."""
        self._credit[flow] = 0.0
        self._passed[flow] = 0

    def leave(self, flow: Flow) -> None:
        del self._credit[flow], self._passed[flow]

    def choose(self, ready: Iterable[Flow], preferred: Callable[[Flow], bool] = lambda flow: True) -> Flow:
        """The next of the flows that have something to do, in turn, of those with credit.

        Preferred ones come first, even in debt, until a flow with credit was passed over so often that it lost patience.
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
        patient = next((flow for flow in able if self._passed[flow] >= PATIENCE), None)
        liked = [flow for flow in (*able, *turns) if preferred(flow)]
        chosen = patient if patient is not None else (liked or able)[0]
        for flow in able:
            self._passed[flow] = 0 if flow == chosen else self._passed[flow] + 1
        return chosen

    def charge(self, flow: Flow, seconds: float) -> None:
        """Book what a flow took, and put it behind the others."""
        self._credit[flow] = self._credit.pop(flow) - seconds
