"""Determines whether a device runs two calls faster on two streams than in sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from katz_graph.executor.worker.stream import Lap

LAPS = 5  # timed runs each way
WINS = 0.02  # share of the time that two streams must save
ATTEMPTS = 20  # invalid laps on two streams after which one stream is chosen


@dataclass(slots=True)
class Trial:
    """Tries two calls on one stream and on two, then settles on the faster. `concurrent`: whether
    to use two streams now. Only laps in which both calls were replayed count.
    """

    concurrent: bool = False
    settled: bool = False
    _one: list[Lap] = field(default_factory=list)
    _two: list[Lap] = field(default_factory=list)
    _attempts: int = 0

    def add(self, lap: Lap, counts: bool) -> None:
        """Adds a lap of the calls, run as `concurrent` says. Does not wait for the device to
        complete it.
        """
        laps = self._two if self.concurrent else self._one
        if counts and len(laps) < LAPS:
            laps.append(lap)
        elif self.concurrent and not counts:
            self._attempts += 1
        if not self.concurrent:
            self.concurrent = len(laps) == LAPS
        elif self._attempts == ATTEMPTS:
            self.settle(concurrent=False)
        elif len(laps) == LAPS and all(one.known for one in laps):
            self.settle(_middle(self._two) <= (1 - WINS) * _middle(self._one))

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Returns the median seconds on one stream and on two, once both are known."""
        if not self._two or not all(lap.known for lap in (*self._one, *self._two)):
            return None
        return _middle(self._one), _middle(self._two)

    def settle(self, concurrent: bool) -> None:
        """Fixes the decision."""
        self.concurrent, self.settled = concurrent, True


def _middle(laps: list[Lap]) -> float:
    return median(lap.seconds for lap in laps)
