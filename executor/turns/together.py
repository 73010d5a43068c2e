"""Runs one evaluation of several tasks, which share the calls that they can. Must not know what is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol


class Offer(Protocol):
    """Describes a call that a task waits for. Tasks may share it if their keys are equal and not
    empty.
    """

    @property
    def key(self) -> str: ...

    @property
    def rows(self) -> int: ...


class OfferingTask(Protocol):
    """Defines a task that runs its units call by call."""

    paired: bool
    """Whether it may offer two independent calls as one offer, which no other task shares."""

    @property
    def offer(self) -> Offer | None:
        """Returns the call to compute next; None between units."""

    @property
    def prepares(self) -> Collection[str]:
        """Returns the keys of all calls that the task will offer, while it prepares them; later
        none.
        """

    @property
    def upcoming(self) -> Sequence[str]:
        """Returns the keys of the unit's calls that the task has yet to offer; none if the next
        unit cannot be shared.
        """

    def advance(self, outputs: Any = None) -> bool:
        """Continues with the outputs of the offer to the next offer or the end of the unit. Returns
        true if the task is done.
        """


class SharedCalls(Protocol):
    """Computes calls of several tasks."""

    def most_rows(self, key: str) -> int:
        """Returns the most rows of a shared call."""

    @property
    def always_by_row(self) -> bool:
        """Returns whether weight sets that may apply to rows only always do."""

    def seconds(self, keys: Collection[str], rows: int, by_row: bool = False) -> float | None:
        """Predicts the seconds of one call of each key; None if unknown. `by_row`: weight sets
        apply to rows.
        """

    def ran_evaluation(self, key: str, rows: int, seconds: float) -> None:
        """Adds an evaluation of several tasks: the rows of all, and its seconds."""

    def together(self, offers: Sequence[Any]) -> list[Any]:
        """Computes offers of one key; returns the outputs, or the error, of each."""


def run_together(
    count: int,
    offer_of: Callable[[int], Offer | None],
    upcoming: Callable[[int], Sequence[str]],
    move: Callable[[int, Any], None],
    compute: Callable[[Sequence[int]], list[Any]],
) -> None:
    """Runs a unit of each of `count` jobs, the leader first. `move(job, result)` continues a job
    with the outputs, or the error, of its offer; None at the start of its unit. `compute` computes
    the offers of some jobs.

    The leader's calls set the order. A member whose call the leader will not make, such as one of
    another ControlNet, makes it alone and joins again at its next one. Members that have not ended
    their unit with the leader go on by the same rule.

    Jobs are numbers, and no offer or result is a variable, because the traceback of a job's error
    references this frame.
    """
    for job in range(count):
        move(job, None)
    while offering := [job for job in range(count) if offer_of(job) is not None]:
        leader, *members = offering
        expected = {*upcoming(leader)} - {""}
        for job in members:
            while _is_own(offer_of(job), expected):
                move(job, compute([job]).pop())
        shared = [leader, *(job for job in members if _alike(offer_of(job), offer_of(leader)))]
        results = compute(shared)
        for job in shared:
            move(job, results.pop(0))


def _is_own(offer: Offer | None, expected: Collection[str]) -> bool:
    return offer is not None and offer.key not in expected


def _alike(one: Offer | None, other: Offer | None) -> bool:
    return one is not None and other is not None and one.key == other.key != ""
