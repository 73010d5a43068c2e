"""Schedules the tasks of a device: deficit round robin in seconds (Shreedhar and Varghese 1995),
charged after the work.

Must not know what is done: flows are any hashable names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

# A set of weights that was switched to stays for STAY times as long as the switch took, so that
# switching takes at most a ninth of the time.
STAY = 8
# For so many times that long nothing else is begun while the flows that use it have nothing to do:
# usually, when it was just brought, and when the first of all flows needs it.
LINGER, LINGER_NEW, LINGER_FIRST = 0.5, 2.0, 4.0
SHARE = 0.05  # seconds that every waiting flow is given in a round


class DeficitRoundRobin(Generic[Flow]):
    """Gives each flow an equal share of the device's seconds while it has something to do.

    Seconds taken beyond the share are a debt that stays; a share that a flow did not use, because
    it had nothing to do, is lost. What only some flows need, and takes long to bring (weights),
    stays for STAY times as long as bringing it took, if somebody uses it. So a flow that did its
    share waits for no more than STAY + 1 switches and a unit of work of each other flow.
    """

    def __init__(self) -> None:
        self._flows: dict[Flow, None] = {}  # in the order of joining
        self._credit: dict[Flow, float] = {}  # seconds, in the order of turns
        self._switch = 0.0  # seconds that the last switch took
        self._used = 0.0  # seconds of work since, and of waiting for more

    def join(self, flow: Flow) -> None:
        """Adds a new flow, with no debt, and last."""
        self._flows[flow] = None
        self._credit[flow] = 0.0

    def leave(self, flow: Flow) -> None:
        del self._flows[flow], self._credit[flow]

    def choose(
        self, ready: Iterable[Flow], preferred: Callable[[Flow], bool] = lambda flow: True
    ) -> Flow:
        """Returns the next flow in turn that has something to do, and credit.

        Preferred ones, for which what they need is there, come first, even in debt, as long as it
        stays.
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

    def patience(
        self, ready: Collection[Flow], preferred: Callable[[Flow], bool], users: Collection[Flow]
    ) -> float:
        """Returns the seconds to wait before one of `ready` is chosen, in case that one of `users`,
        which use what is there, gets something to do.

        0 when a flow that is ready needs nothing else, or what is there stayed long enough. What
        was just brought is waited for longer, and what the first of all flows needs the longest.
        That flow is the same on all devices: so devices that wait for each other end up with the
        same weights.
        """
        left = STAY * self._switch - self._used
        if left <= 0 or not users or any(preferred(flow) for flow in ready):
            return 0.0
        first = next(flow for flow in self._flows if flow in users or flow in ready)
        new = LINGER_FIRST if first in users else LINGER_NEW
        return min(left, self._switch * (new if self._used < self._switch else LINGER))

    def wait(self, seconds: float) -> None:
        """Books idle seconds: what is there does not stay the longer for them."""
        self._used += seconds

    def charge(self, flow: Flow, seconds: float, switch: float = 0.0) -> None:
        """Charges a flow what it took, and puts it behind the others. `switch`: of those seconds,
        what went into bringing what it needs.
        """
        self._credit[flow] = self._credit.pop(flow) - seconds
        if switch:
            self._switch, self._used = switch, 0.0
        self._used += seconds - switch
