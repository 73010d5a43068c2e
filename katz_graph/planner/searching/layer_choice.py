"""Chooses the layers of an evaluation that read a template's activations (InstGenIE, section 4).

The layers run in order on one device, and the tensors of the cached ones arrive in order over one
link. A layer waits for its own tensor only. Must not know programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9  # relative error of sums of seconds
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Holds the seconds of one layer: computed in full, or for the active tokens only."""

    before: float  # of other computation since the previous layer
    full: float
    cached: float
    load: float  # of its tensor over the link, if it is cached

    @property
    def kind(self) -> tuple[str, ...]:
        """Returns a key that is the same for layers that differ by rounding only."""
        return tuple(f"{seconds:.9e}" for seconds in (self.full, self.cached, self.load))

    def seconds(self, cached: bool) -> float:
        return self.cached if cached else self.full


@dataclass(frozen=True, slots=True)
class EvaluationTimes:
    """Holds the seconds of an evaluation that is repeated. Before an evaluation begins, `ahead`
    seconds of its loads may run, if the link is free.
    """

    layers: tuple[LayerTimes, ...]
    after: float = 0.0  # of computation after the last layer
    ahead: float = 0.0

    def loads(self, cached: Sequence[bool]) -> float:
        """Returns the seconds of an evaluation's loads."""
        pairs = zip(self.layers, cached, strict=True)
        return sum(layer.load for layer, reads in pairs if reads)

    def first(self, cached: Sequence[bool], lead: float = 0.0) -> float:
        """Returns the seconds of the first evaluation, whose loads begin `lead` seconds before."""
        return self._end(self._ends(cached, lead))

    def period(self, cached: Sequence[bool]) -> float:
        """Returns the seconds of an evaluation in steady state."""
        return max(self.loads(cached), self._end(self._ends(cached, self._lead)))

    def ends(self, cached: Sequence[bool]) -> list[float]:
        """Returns the seconds from the begin of an evaluation to the end of each layer, in steady
        state.
        """
        loads = self.loads(cached)
        # the lead is constant in steady state, so an evaluation takes at least as long as its loads
        idle = -loads - sum(layer.before + layer.full for layer in self.layers)
        behind = self._end(self._ends(cached, 0.0, idle))
        return self._ends(cached, min(self._lead, max(0.0, behind - loads)))

    def best(self) -> tuple[bool, ...]:
        """Returns for each layer whether it reads the template, so that the period is the least; of
        equal choices the one with the shortest loads. Never slower than no cached layer or all. Of
        equal layers the last ones are cached, so that the first evaluation waits least.

        A dynamic program over layers keeps the Pareto front of (link busy until, device busy
        until), without states that must end later than a known choice. Exact.
        """
        none, every = (False,) * len(self.layers), (True,) * len(self.layers)
        most = min(self.period(none), self.period(every)) * (1 + ROUNDING)
        link, device, lead = np.array([-self._lead]), np.zeros(1), self._lead
        steps = []
        for layer, rest in zip(self.layers, self._least_rests(), strict=True):
            device = device + layer.before
            arrived = link + layer.load
            link = np.concatenate([link, arrived])
            device = np.concatenate(
                [device + layer.full, np.maximum(device, arrived) + layer.cached]
            )
            order = np.lexsort((device, link))
            earlier = np.minimum.accumulate(np.append(np.inf, device[order]))[:-1]
            order = order[
                (device[order] < earlier)
                & (device[order] + rest <= most)
                & (link[order] + lead <= most)
            ]
            steps.append((order, len(arrived)))
            link, device = link[order], device[order]
        found = _choices(steps, int(np.maximum(link + lead, device + self.after).argmin()))
        return self._late(found)

    def _late(self, cached: Sequence[bool]) -> tuple[bool, ...]:
        """Returns the choice with the last of equal layers cached."""
        kinds = [layer.kind for layer in self.layers]
        left = Counter(kind for kind, reads in zip(kinds, cached, strict=True) if reads)
        found = []
        for kind in reversed(kinds):
            found.append(left[kind] > 0)
            left[kind] -= 1
        return tuple(reversed(found))

    def _least_rests(self) -> list[float]:
        """Returns for each layer the least seconds of computation after it."""
        least = (layer.before + min(layer.full, layer.cached) for layer in self.layers[:0:-1])
        return [*accumulate(least, initial=self.after)][::-1] if self.layers else []

    @property
    def _lead(self) -> float:
        """Returns the longest lead of the loads that helps."""
        return min(self.ahead, sum(layer.load for layer in self.layers))

    def _ends(self, cached: Sequence[bool], lead: float, device: float = 0.0) -> list[float]:
        """Returns the end of each layer, from the end of the evaluation before, if the loads begin
        `lead` seconds earlier, and the device is busy until `device`.
        """
        link, ends = -lead, []
        for layer, reads in zip(self.layers, cached, strict=True):
            device += layer.before
            if reads:
                link += layer.load
                device = max(device, link)
            device += layer.seconds(reads)
            ends.append(device)
        return ends

    def _end(self, ends: Sequence[float]) -> float:
        return (ends[-1] if ends else 0.0) + self.after


def _choices(steps: Sequence[tuple[Indices, int]], state: int) -> tuple[bool, ...]:
    """Returns the choices that lead to a state of the last front. steps: by layer, the indices of
    its front among the states with the layer in full, followed by those with it cached; and the
    number of either.
    """
    found = []
    for order, number in reversed(steps):
        place = int(order[state])
        found.append(place >= number)
        state = place % number
    return tuple(reversed(found))
