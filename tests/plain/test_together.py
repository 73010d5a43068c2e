"""Tasks share the calls of one evaluation: who computes with whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.executor.turns.together import run_together


@dataclass(frozen=True)
class Call:
    key: str
    owner: str
    rows: int = 2


@dataclass
class Task:
    """Offers calls with these keys in one unit. A key that begins with `own` is its own call."""

    name: str
    keys: list[str]
    fails_at: int = -1
    made: int = 0
    failed: bool = False
    results: list[Any] = field(default_factory=list)

    @property
    def offer(self) -> Call | None:
        started = self.results and not self.failed and self.made < len(self.keys)
        return Call(self.keys[self.made], self.name) if started else None

    @property
    def upcoming(self) -> list[str]:
        return self.keys[self.made :]


def run(*tasks: Task) -> list[str]:
    """Runs tasks, the leader first. Returns the calls: key and owners."""
    calls: list[str] = []

    def move(task: Task, result: Any) -> None:
        if isinstance(result, Exception):
            task.failed = True
        elif result is not None:
            task.made += 1
        task.results.append(result)

    def compute(jobs: Sequence[Any]) -> list[Any]:
        offers = [job.offer for job in jobs]
        calls.append(f"{offers[0].key}: {' '.join(offer.owner for offer in offers)}")
        by_name = {task.name: task for task in tasks}
        return [
            ValueError(offer.owner)
            if by_name[offer.owner].fails_at == by_name[offer.owner].made
            else f"{offer.key} of {offer.owner}"
            for offer in offers
        ]

    run_together(
        len(tasks),
        lambda one: tasks[one].offer,
        lambda one: tasks[one].upcoming,
        lambda one, result: move(tasks[one], result),
        lambda some: compute([tasks[one] for one in some]),
    )
    assert all(task.failed or not task.upcoming for task in tasks)
    return calls


def test_requests_with_other_controlnets_meet_at_the_network() -> None:
    a = Task("a", ["own", "encode", "mid", "decode"])
    b = Task("b", ["encode", "other", "mid", "decode"])
    c = Task("c", ["encode", "mid", "decode"])
    assert run(a, b, c) == [
        "own: a",
        "encode: a b c",
        "other: b",
        "mid: a b c",
        "decode: a b c",
    ]


def test_calls_without_a_key_are_never_shared() -> None:
    assert run(Task("a", ["", "x"]), Task("b", ["", "x"])) == [": b", ": a", "x: a b"]


def test_members_that_the_leader_does_not_meet_share_with_each_other() -> None:
    """Two evaluations whose calls have another order cannot meet at both."""
    a = Task("a", ["x"])
    b, c = Task("b", ["x", "y", "z"]), Task("c", ["x", "y", "z"])
    assert run(a, b, c) == ["x: a b c", "y: b c", "z: b c"]


def test_a_failing_leader_or_member_leaves_and_the_others_go_on() -> None:
    a, b = Task("a", ["x", "y", "z"], fails_at=1), Task("b", ["x", "y", "z"])
    assert run(a, b) == ["x: a b", "y: a b", "z: b"]
    a, b = Task("a", ["x", "y", "z"]), Task("b", ["x", "y", "z"], fails_at=0)
    assert run(a, b) == ["x: a b", "y: a", "z: a"]
    assert b.failed and not a.failed


def test_each_task_gets_its_own_results() -> None:
    a, b = Task("a", ["x", "y"]), Task("b", ["own", "x", "y"])
    run(a, b)
    assert a.results[1:] == ["x of a", "y of a"]
    assert b.results[1:] == ["own of b", "x of b", "y of b"]
