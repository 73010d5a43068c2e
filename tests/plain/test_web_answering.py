"""A call that hangs in an answering thread blocks no other call."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from katz_graph.web.runner import answering
from katz_graph.web.runner.answering import Answering

ANSWER_TIMEOUT_S = 10.0


class Waiting:
    """Makes calls that wait for `release`, and records their outcomes."""

    def __init__(self, at_once: int = 2, slow_s: float = 0.05, deadline_s: float = 0.15) -> None:
        self.release = threading.Event()
        self.changed = threading.Condition()
        self.events: list[str] = []
        self.hung: list[str] = []
        self.threads = Answering("test", at_once, slow_s, deadline_s, self.hung.append)

    def hang(self, name: str) -> None:
        self.threads.submit(lambda: self.wait(name), lambda why: self.emit(f"{name}: {why}"))

    def wait(self, name: str) -> None:
        self.emit(f"{name} began")
        self.release.wait(ANSWER_TIMEOUT_S)

    def emit(self, what: str) -> None:
        with self.changed:
            self.events.append(what)
            self.changed.notify_all()

    def until(self, *events: str) -> None:
        with self.changed:
            assert self.changed.wait_for(
                lambda: set(events) <= set(self.events), ANSWER_TIMEOUT_S
            ), self.events


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    made = Waiting()
    yield made
    made.release.set()
    made.threads.close()


@pytest.mark.defect(23)
def test_calls_behind_slow_ones_begin_and_each_slow_one_is_given_up(waiting: Waiting) -> None:
    began = time.monotonic()
    for name in "abc":
        waiting.hang(name)
    waiting.threads.submit(lambda: waiting.emit("quick"), print)
    waiting.until("a began", "b began")
    assert "quick" not in waiting.events, "two at a time"
    waiting.until("c began", "quick")
    assert time.monotonic() - began < 5
    waiting.until(*(f"{name}: it took longer than 0.15 s" for name in "abc"))
    assert not waiting.hung


@pytest.mark.defect(23)
@pytest.mark.defect(25)
def test_one_call_of_a_client_waits_for_one_of_each_other_client() -> None:
    waiting = Waiting(at_once=1, slow_s=ANSWER_TIMEOUT_S, deadline_s=ANSWER_TIMEOUT_S)
    waiting.hang("first")
    for name in ("a0", "a1", "a2", "b0"):
        emit = partial(waiting.emit, name)
        waiting.threads.submit(emit, print, client=name[0])
    waiting.release.set()
    waiting.until("a0", "a1", "a2", "b0")
    waiting.threads.close()
    assert waiting.events == ["first began", "a0", "b0", "a1", "a2"]


def test_a_deadline_may_be_longer_than_a_thread_can_wait() -> None:
    waiting = Waiting(deadline_s=float("inf"))
    waiting.hang("a")
    waiting.until("a began")
    time.sleep(0.1)  # then the call counts as slow
    for name in "bc":
        waiting.hang(name)
    waiting.until("b began", "c began")
    waiting.release.set()
    waiting.threads.close()


@pytest.mark.defect(23)
def test_too_many_that_hang_are_reported_once(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "MAX_ABANDONED", 3)
    for name in "abcd":
        waiting.hang(name)
    waiting.until(*(f"{name}: it took longer than 0.15 s" for name in "abcd"))
    waiting.threads.submit(lambda: waiting.emit("quick"), print)
    waiting.until("quick")
    assert len(waiting.hung) == 1 and "threads are stuck" in waiting.hung[0]


def test_a_call_that_raises_leaves_its_place(waiting: Waiting) -> None:
    threading.excepthook, old = (lambda _: None), threading.excepthook
    try:
        for _ in range(4):
            waiting.threads.submit(lambda: 1 / 0, print)
        waiting.threads.submit(lambda: waiting.emit("after"), print)
        waiting.until("after")
    finally:
        threading.excepthook = old
