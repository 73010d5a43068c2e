"""Finds out whether two calls take a device less time on two streams at once than one after the
other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from katz_graph.executor.worker.stream import Lap

LAPS = 5  # that are timed each way
WINS = 0.02  # of the time, that two streams must save
ATTEMPTS = 20  # on two streams without a lap that counts, after which they are given up


@dataclass(slots=True)
class Trial:
    """Has two calls carried out both ways, then always as was faster. `beside`: whether on two
    streams now. What counts are laps in which both calls were replayed.
    """

    beside: bool = False
    settled: bool = False
    _one: list[Lap] = field(default_factory=list)
    _two: list[Lap] = field(default_factory=list)
    _attempts: int = 0

    def add(self, lap: Lap, counts: bool) -> None:
        """Takes the time that the calls took in the way of `beside`, which the device may not know
        yet; nobody waits for it.
        """
        laps = self._two if self.beside else self._one
        if counts and len(laps) < LAPS:
            laps.append(lap)
        elif self.beside and not counts:
            self._attempts += 1
        if not self.beside:
            self.beside = len(laps) == LAPS
        elif self._attempts == ATTEMPTS:
            self.settle(beside=False)
        elif len(laps) == LAPS and all(one.known for one in laps):
            self.settle(_middle(self._two) <= (1 - WINS) * _middle(self._one))

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Returns what the calls took on one stream and on two, once both are known."""
        if not self._two or not all(lap.known for lap in (*self._one, *self._two)):
            return None
        return _middle(self._one), _middle(self._two)

    def settle(self, beside: bool) -> None:
        """Decides, for good."""
        self.beside, self.settled = beside, True


def _middle(laps: list[Lap]) -> float:
    return median(lap.seconds for lap in laps)
