"""Predicts the seconds of calls by their rows, from a profile and from the groups that ran. Pure
arithmetic; must not know what a call computes.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field

from katz_graph.ir.device import interpolated

GROUPS = 20  # groups of a key and a number of rows whose median is the prediction
TRIALS = 3  # groups of a number of rows before their seconds decide who joins
MAX_AGE = 1000  # later groups of a key, after which those of other rows count no more
MAX_KEYS = 1024  # the key that was measured the longest ago is dropped first
FIRST_EVALUATIONS = 50  # whose errors do not count
MAX_ERRORS = 1000  # of the last evaluations


@dataclass(slots=True)
class _Call:
    """Holds the seconds of one kind of call by its rows: expected, and of the last groups."""

    expected: dict[int, float] = field(default_factory=dict)
    groups: dict[int, deque[float]] = field(default_factory=dict)
    number: int = 0  # of groups of any rows
    last: dict[int, int] = field(default_factory=dict)  # number of the last group, by rows
    # measured / expected seconds of the last groups of any rows
    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=GROUPS))
    # predictions since the last change: a scheduler asks for the same ones again and again
    predicted: dict[int, float | None] = field(default_factory=dict)

    def add(self, rows: int, seconds: float) -> None:
        expected = interpolated(rows, self.expected)
        if expected is not None:
            self.ratios.append(seconds / expected)
        self.groups.setdefault(rows, deque(maxlen=GROUPS)).append(seconds)
        self.number += 1
        self.last[rows] = self.number
        # rows that cost too much while another program disturbed the device are tried again
        for old in [one for one, last in self.last.items() if self.number - last >= MAX_AGE]:
            del self.groups[old], self.last[old]
        self.predicted = {}

    def seconds(self, rows: int) -> float | None:
        if rows not in self.predicted:
            self.predicted[rows] = interpolated(rows, self._points())
        return self.predicted[rows]

    def _points(self) -> dict[int, float]:
        """Returns the seconds at all known numbers of rows. Expected seconds are corrected by the
        median ratio of the last groups, and then count as two groups, so that one disturbed group
        does not decide alone. Without groups, they are at most those of more rows that ran, and at
        least those of fewer.
        """
        ratio = statistics.median([1.0, *self.ratios])
        points = {rows: seconds * ratio for rows, seconds in self.expected.items()}
        measured = {}
        for rows, groups in self.groups.items():
            known = interpolated(rows, points)
            prior = [] if known is None or len(groups) == GROUPS else [known, known]
            measured[rows] = statistics.median([*groups, *prior])
        for rows, seconds in points.items():
            most = min((one for other, one in measured.items() if other > rows), default=seconds)
            least = max((one for other, one in measured.items() if other < rows), default=0.0)
            points[rows] = max(min(seconds, most), least)
        return points | measured


class CallSeconds:
    """Predicts the seconds of a call by its key and number of rows: the median of the last groups,
    and a straight line between numbers of rows (`interpolated`).

    Seconds of rows that did not run during the last MAX_AGE groups of their key are forgotten.

    A key stands for all that determines a call's seconds but the rows, such as a device and a share
    key. Callers that pad calls give the padded number of rows. Not thread-safe.

    `predicted` and `measured` sum the seconds of the groups that had a prediction. An evaluation is
    a sequence of groups of equal rows and different keys.
    """

    def __init__(self) -> None:
        self._calls: dict[Hashable, _Call] = {}
        self.predicted = self.measured = 0.0
        # of the current evaluation: rows, and predicted and measured seconds by key
        self._rows = 0
        self._evaluation: dict[Hashable, tuple[float | None, float]] = {}
        self._first = FIRST_EVALUATIONS
        self._errors = deque[float]()
        self._sorted: list[float] = []  # the same errors

    def expect(self, key: Hashable, seconds: Mapping[int, float]) -> None:
        """Sets the seconds of a key by rows, from a profile or an estimate, until groups run."""
        usable = {rows: one for rows, one in seconds.items() if _is_usable(rows, one)}
        call = self._calls.setdefault(key, _Call())
        if usable != call.expected:  # requests of one key repeat what is expected
            call.expected, call.predicted = usable, {}
            call.ratios.clear()
        self._drop_oldest()

    def add(self, key: Hashable, rows: int, seconds: float) -> None:
        """Adds the measured seconds of a group. Ignores impossible times, as of a clock that
        jumps.
        """
        if not _is_usable(rows, seconds):
            return
        call = self._calls[key] = self._calls.pop(key, _Call())
        predicted = call.seconds(rows)
        if predicted is not None:
            self.predicted += predicted
            self.measured += seconds
        if key in self._evaluation or rows != self._rows:
            self._end_evaluation()
        self._rows, self._evaluation[key] = rows, (predicted, seconds)
        call.add(rows, seconds)
        self._drop_oldest()

    def _end_evaluation(self) -> None:
        """Adds the error of the predictions of an evaluation, if all of its groups had one."""
        predicted, measured = 0.0, 0.0
        known = bool(self._evaluation)
        for one, seconds in self._evaluation.values():
            known &= one is not None
            predicted, measured = predicted + (one or 0.0), measured + seconds
        self._evaluation = {}
        if known and self._first:
            self._first -= 1
        elif known:
            self._add_error(abs(predicted / measured - 1))

    def _add_error(self, error: float) -> None:
        if len(self._errors) == MAX_ERRORS:
            del self._sorted[bisect_left(self._sorted, self._errors.popleft())]
        self._errors.append(error)
        insort(self._sorted, error)

    def error(self, share: float) -> float | None:
        """Returns the relative error that this share of the last evaluations' predictions did not
        exceed; None until FIRST_EVALUATIONS evaluations had one.
        """
        return self._sorted[int(share * len(self._sorted))] if self._sorted else None

    def seconds(self, key: Hashable, rows: int) -> float | None:
        """Returns the seconds of a call, or None if neither a profile nor groups tell: the key, or
        numbers of rows on both sides, are unknown.
        """
        call = self._calls.get(key)
        return None if call is None else call.seconds(rows)

    def optimistic_seconds(self, key: Hashable, rows: int) -> float | None:
        """Returns the seconds of a call. Until TRIALS groups of these rows ran, returns those of
        the next smaller number of rows with so many groups, so that more rows count as free and are
        tried. Without a smaller one, the smallest number with so many groups counts, or else the
        smallest expected one. None if nothing is known of the key.
        """
        if (call := self._calls.get(key)) is None:
            return None
        tried = [one for one, groups in call.groups.items() if len(groups) >= TRIALS]
        known = [one for one in tried if one <= rows] or [min(tried or call.expected, default=0)]
        return call.seconds(max(known))

    def _drop_oldest(self) -> None:
        if len(self._calls) > MAX_KEYS:
            del self._calls[next(iter(self._calls))]


def _is_usable(rows: int, seconds: float) -> bool:
    return rows >= 1 and 0 < seconds < math.inf
