"""The supervisor detects dead and frozen workers, replaces them, and leaves no process. Uses real
processes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fake_worker
import pytest
import torch
from processes import as_before, below, eventually, runs

from katz_graph.core.errors import Cancelled, RunError
from katz_graph.executor.cluster.supervisor import Supervisor
from katz_graph.executor.cluster.worker_handle import WorkerPatience
from katz_graph.executor.launch.base import hello
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.in_process import WorkerThread
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.ipc.heartbeat import Pong
from katz_graph.testing.worker_threads import WorkerThreads

# PATIENT suspects silence early and tolerates much more; NEVER_SUSPECT suspects no silence
PATIENT = WorkerPatience(suspect=0.5, frozen=5.0)
NEVER_SUSPECT = WorkerPatience(suspect=600.0, frozen=600.0)


class Calls:
    """Records the reports of a supervisor with their times."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server
        self.items: queue.Queue[tuple[Any, ...]] = queue.Queue()

    def make(
        self, entry: str = "serve", names: tuple[str, ...] = ("a",), **options: Any
    ) -> Supervisor:
        launcher = Spawn(self._server, f"fake_worker:{entry}", echo=lambda line: None)
        return Supervisor(
            dict.fromkeys(names, launcher),
            on_message=lambda name, message: self.items.put(
                (message[0], name, message[1], time.monotonic())
            ),
            on_lost=lambda name, reason: self.items.put(("lost", name, reason, time.monotonic())),
            on_replaced=lambda name, connection: self.items.put(
                ("replaced", name, connection, time.monotonic())
            ),
            on_failed=lambda name, error: self.items.put(("failed", name, error, time.monotonic())),
            **options,
        )

    def next(self, kind: str, timeout: float = 30.0) -> tuple[str, Any, float]:
        """Returns the name, content and time of the next report, which must be of this kind."""
        got, name, content, when = self.items.get(timeout=timeout)
        assert got == kind, (got, name, content)
        return name, content, when


@pytest.fixture
def calls(fake_server: ForkServer) -> Calls:
    return Calls(fake_server)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Checks that no process, open socket or pipe, and no shared memory outlives a test."""

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before, open_before, shared = below(os.getpid()), descriptors(), set(Path("/dev/shm").iterdir())
    yield
    as_before(before)
    eventually(lambda: descriptors() <= open_before, 5)  # threads close some shortly afterwards
    eventually(lambda: set(Path("/dev/shm").iterdir()) <= shared, 5)


def test_workers_answer_and_end_with_the_block(calls: Calls) -> None:
    began = time.monotonic()
    patience = WorkerPatience(stop=30.0)
    with calls.make(names=("a", "b"), patience=patience) as supervisor:
        connections = supervisor.start()
        print(f"two workers that import torch were ready after {time.monotonic() - began:.2f} s")
        connections["b"].send(("echo", torch.arange(3)))
        name, content, _ = calls.next("echo")
        assert name == "b" and content.tolist() == [0, 1, 2]
        assert supervisor.states() == {"a": "ready", "b": "ready"}
        pids = [pid for pid in supervisor.pids().values() if pid is not None]
        assert len(set(pids)) == 2 and all(map(runs, pids))
        began = time.monotonic()
    print(f"closed after {time.monotonic() - began:.2f} s")
    assert not any(map(runs, pids))
    assert time.monotonic() - began < patience.stop / 2  # stopped on request, not killed


def test_a_killed_worker_is_noticed_by_its_end_and_replaced(calls: Calls) -> None:
    """The reason names the signal. `katz bench faults` checks how fast."""
    with calls.make(names=("a", "b"), patience=NEVER_SUSPECT) as supervisor:
        first = supervisor.start()
        pid = supervisor.pids()["a"]
        assert pid is not None
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        name, reason, noticed = calls.next("lost", 5)
        with pytest.raises(RunError, match="device a: its worker is being replaced"):
            supervisor.connection("a")
        assert name == "a" and "SIGKILL" in reason and "did not answer" not in reason
        print(f"SIGKILL noticed after {noticed - killed:.3f} s")
        name, connection, replaced = calls.next("replaced")
        print(f"replaced without a spare after {replaced - killed:.2f} s")
        assert name == "a" and connection is supervisor.connection("a") is not first["a"]
        assert supervisor.connection("b") is first["b"]
        connection.send(("echo", "again"))
        assert calls.next("echo")[:2] == ("a", "again")


def test_a_spare_takes_the_place_of_a_killed_worker(calls: Calls) -> None:
    """`katz bench faults` checks how fast."""
    with calls.make(spares=True, patience=NEVER_SUSPECT) as supervisor:
        supervisor.start()
        eventually(lambda: "spare 0" in supervisor.pids(), 30)
        pids = supervisor.pids()
        assert pids["a"] is not None
        killed = time.monotonic()
        os.kill(pids["a"], signal.SIGKILL)
        calls.next("lost", 5)
        _, connection, replaced = calls.next("replaced")
        print(f"replaced by the spare after {replaced - killed:.3f} s")
        assert supervisor.pids()["a"] == pids["spare 0"]
        connection.send(("echo", "here"))
        assert calls.next("echo")[:2] == ("a", "here")
        eventually(lambda: "spare 0" in supervisor.pids(), 30)  # the next spare


@pytest.mark.defect(44)
def test_a_spare_that_dies_is_replaced_at_once(calls: Calls) -> None:
    with calls.make(spares=True, patience=NEVER_SUSPECT) as supervisor:
        supervisor.start()
        eventually(lambda: "spare 0" in supervisor.pids(), 30)
        lost = supervisor.pids()["spare 0"]
        assert lost is not None
        os.kill(lost, signal.SIGKILL)
        eventually(lambda: supervisor.pids().get("spare 0", lost) != lost, 30)
        assert calls.items.empty()  # no device reported a loss


@pytest.mark.defect(44)
def test_a_spare_that_always_dies_is_started_again_only_with_a_replacement(
    caplog: pytest.LogCaptureFixture,
) -> None:
    launcher = FailsAsSpare()
    patience = WorkerPatience(max_failed_starts=3)
    replaced = threading.Event()
    supervisor = Supervisor(
        {"a": launcher},
        on_message=lambda name, message: None,
        on_lost=lambda name, reason: None,
        on_replaced=lambda name, connection: replaced.set(),
        on_failed=lambda name, error: None,
        spares=True,
        patience=patience,
    )
    with supervisor:
        first = supervisor.start()["a"]
        eventually(lambda: bool(caplog.records), 5)
        assert launcher.spares == 3
        (record,) = caplog.records
        assert record.getMessage().startswith("the spare worker did not start 3 times in a row")
        assert record.getMessage().endswith("no memory for another")
        first.send(("end", None))
        assert replaced.wait(5)
        eventually(lambda: launcher.spares == 6, 5)


class FailsAsSpare:
    """Starts workers in threads, but fails to start spares."""

    in_process = False
    any_device = True

    def __init__(self) -> None:
        self.spares = 0

    def launch(self, name: str, background: bool = False) -> WorkerThread:
        if background:
            self.spares += 1
            raise RunError("no memory for another")
        return WorkerThreads(ends).launch(name)


def ends(connection: Connection) -> None:
    """Answers pings until asked to end or, by `silence`, only to receive."""
    with contextlib.suppress(Closed):
        connection.send(hello())
        while (message := connection.receive()) != ("end", None):
            if message == ("silence", None):
                while True:
                    connection.receive()
            connection.send(Pong())


@pytest.mark.defect(45)
def test_a_loss_is_reported_after_the_worker_s_starter_ended() -> None:
    """Ray's calls fail in this way if Ray's head node is lost."""
    calls: queue.Queue[tuple[str, ...]] = queue.Queue()
    launcher = LostLauncher()
    supervisor = Supervisor(
        {"a": launcher, "b": launcher},
        on_message=lambda name, message: calls.put((name, str(message))),
        on_lost=lambda name, reason: calls.put((name, reason)),
        on_replaced=lambda name, connection: None,
        on_failed=lambda name, error: calls.put((name, str(error))),
        patience=WorkerPatience(ping=0.05, frozen=0.3, suspect=0.1, deaths=1),
    )
    with supervisor:
        connections = supervisor.start()
        launcher.is_lost = True
        connections["a"].send(("end", None))
        name, reason = calls.get(timeout=5)
        assert (name, "no head" in reason) == ("a", True)
        assert calls.get(timeout=5)[0] == "a"  # the worker is abandoned
        # the other worker's silence is detected too
        connections["b"].send(("silence", None))
        name, reason = calls.get(timeout=5)
        assert name == "b" and "did not answer" in reason


class LostLauncher:
    """Starts workers in threads; all queries about them fail once it `is_lost`."""

    in_process = False
    any_device = False
    is_lost = False

    def launch(self, name: str, background: bool = False) -> Any:
        return Reachable(self, WorkerThreads(ends).launch(name))


class Reachable:
    """Controls a worker; fails once its launcher `is_lost`."""

    pid = None

    def __init__(self, launcher: LostLauncher, thread: WorkerThread) -> None:
        self._launcher, self._thread = launcher, thread
        self.connection = thread.connection

    def __getattr__(self, name: str) -> Any:
        if self._launcher.is_lost:
            raise ConnectionError("no head")
        return getattr(self._thread, name)


def test_a_frozen_worker_is_killed_and_replaced(calls: Calls) -> None:
    with calls.make(patience=PATIENT) as supervisor:
        supervisor.start()
        pid = supervisor.pids()["a"]
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        frozen = time.monotonic()
        eventually(lambda: supervisor.states()["a"] == "suspect", 5)
        for _ in range(20):  # the socket buffers them, which is no sign of life
            supervisor.connection("a").send(("echo", None))
            time.sleep(0.05)
        with pytest.raises(Closed):  # a waiting sender is released
            supervisor.connection("a").send(("echo", torch.zeros(8 << 20)))
        _, reason, noticed = calls.next("lost", 5)
        print(f"SIGSTOP noticed after {noticed - frozen:.2f} s")
        silence = re.search(r"did not answer for (\S+) s", reason)
        assert silence and float(silence[1]) >= PATIENT.frozen, reason
        assert not runs(pid)
        calls.next("replaced")


def test_busy_is_not_frozen(calls: Calls) -> None:
    """All cores of the worker are busy for 3 s and its interpreter lock is held for 1 s and 2 s:
    suspect, but within the default tolerance.
    """
    assert PATIENT.suspect < 1.0 and WorkerPatience().frozen > 2.0
    with calls.make(patience=PATIENT) as supervisor:
        connection = supervisor.start()["a"]
        connection.send(("compute", 3.0))
        calls.next("computing")
        for seconds in (1.0, 2.0):
            connection.send(("hold", seconds))
            connection.send(("echo", seconds))
            assert calls.next("echo")[1] == seconds
        assert calls.items.empty()
        eventually(lambda: supervisor.states() == {"a": "ready"}, 5)


def test_a_message_of_many_seconds_is_a_sign_of_life(calls: Calls) -> None:
    """On a slow link a pong waits behind a picture: here, behind a frame that takes 2 s."""
    from slow_launcher import SlowLauncher

    launcher = SlowLauncher(seconds=2.0)
    patience = WorkerPatience(suspect=0.3, frozen=0.6)
    lost: list[str] = []
    received: queue.Queue[Any] = queue.Queue()
    supervisor = Supervisor(
        {"a": launcher},
        on_message=lambda name, message: received.put(message[1]),
        on_lost=lambda name, reason: lost.append(reason),
        on_replaced=lambda name, connection: None,
        on_failed=lambda name, error: None,
        patience=patience,
    )
    with supervisor:
        supervisor.start()
        assert received.get(timeout=10).numel() == 1000
        assert not lost


def test_a_worker_that_always_dies_is_given_up(calls: Calls) -> None:
    with calls.make("serve_once", patience=WorkerPatience(deaths=2)) as supervisor:
        with contextlib.suppress(RunError):  # it may die before `start` returns connections
            supervisor.start()
        kinds = []
        while not kinds or kinds[-1] != "failed":
            kind, _, content, _ = calls.items.get(timeout=60)
            kinds.append(kind)
        assert kinds.count("lost") == 2 and kinds.count("replaced") == 1
        assert str(content).startswith(
            "device a: its worker died 2 times within 60 s and is not started again; last reason: "
        )
        with pytest.raises(RunError, match="died 2 times"):
            supervisor.connection("a")


def test_a_failing_start_reports_the_reason_and_leaves_nothing(calls: Calls) -> None:
    with pytest.raises(RunError) as error, calls.make("broken") as supervisor:
        supervisor.start()
    assert "its worker did not start" in str(error.value)
    assert str(error.value).endswith(
        "exit status 1; it last printed: ImportError: libcuda.so.1: cannot open shared object file"
    )
    assert "\n" not in str(error.value)


def test_a_start_that_hangs_ends(calls: Calls) -> None:
    with pytest.raises(RunError, match="did not start within 1 s"):
        calls.make("never_hello", patience=WorkerPatience(start=1.0)).start()


def test_ctrl_c_in_the_middle_of_a_launch_leaves_nothing(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, before = threading.Thread.start, below(os.getpid())

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "katz-reader-b":
            eventually(lambda: len(below(os.getpid()) - before) == 2, 20)
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        calls.make(names=("a", "b")).start()
    eventually(lambda: below(os.getpid()) == before, 5)


def test_a_worker_of_another_version_is_refused(calls: Calls) -> None:
    with pytest.raises(RunError, match=r"it runs katz-graph 0\.0\.1, the main process "):
        calls.make("of_another_version").start()


def test_a_stubborn_worker_is_finally_killed_with_its_children(calls: Calls) -> None:
    with calls.make("serve_stubbornly") as supervisor:
        supervisor.start()["a"].send(("child", None))
        _, child, _ = calls.next("child")
        assert runs(child)
        began = time.monotonic()
    assert 1.5 < time.monotonic() - began < 4.0
    eventually(lambda: not runs(child), 1)


def test_a_further_worker_that_does_not_start_may_be_added_again(calls: Calls) -> None:
    with calls.make() as supervisor:
        supervisor.start()
        for _ in range(2):
            with pytest.raises(RunError, match=r"device b: its worker did not start: .*libcuda"):
                supervisor.add("b", WorkerThreads(fake_worker.broken))
        supervisor.add("b", WorkerThreads(fake_worker.serve)).send(("echo", "here"))
        assert calls.next("echo")[:2] == ("b", "here")
        assert supervisor.states() == {"a": "ready", "b": "ready"}


def test_closing_ends_the_wait_for_a_further_worker(calls: Calls) -> None:
    with calls.make() as supervisor, ThreadPoolExecutor(1) as pool:
        supervisor.start()
        waiting = pool.submit(supervisor.add, "b", WorkerThreads(silent))
        eventually(lambda: "b" in supervisor.states(), 5)
        supervisor.close()
        with pytest.raises((Cancelled, RunError)):
            waiting.result(10)


def silent(connection: Connection) -> None:
    with contextlib.suppress(Closed):
        connection.receive()
