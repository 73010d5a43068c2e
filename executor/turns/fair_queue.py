"""Schedules the tasks of a device by deficit round robin (Shreedhar and Varghese 1995), in seconds
charged after the work.

Must not know what is computed: flows are any hashable names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

Flow = TypeVar("Flow", bound=Hashable)

# A weight set stays resident for STAY times as long as its switch took, so switching takes at most
# a ninth of the time.
STAY = 8
# Idle wait for flows that use the resident set, in multiples of the switch's duration: by default,
# just after a switch, and just after a switch if the oldest flow uses the set.
LINGER, LINGER_NEW, LINGER_FIRST = 0.5, 2.0, 4.0
SHARE = 0.05  # seconds of credit for every waiting flow in a round


class DeficitRoundRobin(Generic[Flow]):
    """Gives each flow with work an equal share of the device's seconds.

    Time used beyond the share is a persistent debt; a share unused for lack of work is lost. While
    flows use the resident weights, these stay for STAY times the duration of the switch to them. So
    a flow that used its share waits for at most STAY + 1 switches and one unit of work of each
    other flow.
    """

    def __init__(self) -> None:
        self._flows: dict[Flow, None] = {}  # in the order of joining
        self._credit: dict[Flow, float] = {}  # seconds, in the order of turns
        self._switch = 0.0  # seconds that the last switch took
        self._used = 0.0  # seconds of work and waiting since the last switch

    def join(self, flow: Flow) -> None:
        """Adds a flow without debt, in the last place."""
        self._flows[flow] = None
        self._credit[flow] = 0.0

    def leave(self, flow: Flow) -> None:
        del self._flows[flow], self._credit[flow]

    def choose(
        self, ready: Iterable[Flow], preferred: Callable[[Flow], bool] = lambda flow: True
    ) -> Flow:
        """Returns the next flow in turn that has work and credit.

        Preferred flows, which need no switch, come first, even in debt, until the resident weights
        have stayed long enough.
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
        """Returns the seconds to wait before choosing one of `ready`, in case one of the `users` of
        the resident weights gets work.

        0 if a ready flow needs no switch, or if the resident weights have stayed long enough. Just
        after a switch the wait is longer, and longest if the oldest flow uses the weights. The
        oldest flow is the same on all devices, so devices that wait for each other end up with the
        same weights.
        """
        left = STAY * self._switch - self._used
        if left <= 0 or not users or any(preferred(flow) for flow in ready):
            return 0.0
        first = next(flow for flow in self._flows if flow in users or flow in ready)
        new = LINGER_FIRST if first in users else LINGER_NEW
        return min(left, self._switch * (new if self._used < self._switch else LINGER))

    def wait(self, seconds: float) -> None:
        """Counts idle seconds toward the stay of the resident weights."""
        self._used += seconds

    def charge(self, flow: Flow, seconds: float, switch: float = 0.0) -> None:
        """Charges a flow for its seconds, and moves it behind the others. `switch`: the share of
        those seconds spent on switching weights.
        """
        self._credit[flow] = self._credit.pop(flow) - seconds
        if switch:
            self._switch, self._used = switch, 0.0
        self._used += seconds - switch
