"""The server replaces a runner that dies or hangs, reports the affected jobs, answers or refuses
pending requests, and leaves no trace of the runner.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from processes import as_before, below, runs

from katz_graph.core.errors import RunError
from katz_graph.core.events import Warned
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.web.events import Ended, JobEvent
from katz_graph.web.jobs.job import Job
from katz_graph.web.options import ServeOptions
from katz_graph.web.runner_client.manager import Runner
from katz_graph.web.runner_client.messages import Check, GetObjectInfo
from katz_graph.web.runner_client.process import RunnerDown, RunnerPatience

FAKE = str(Path(__file__).with_name("fake_runner.py"))
IMPATIENT = RunnerPatience(ping=0.1, silence=1.5, starting=30, answer=10, stop=5)


def job(name: str, do: str = "") -> Job:
    return Job(name, 0, {"do": do}, (), None, {}, "pending", time.time())


@dataclass
class Seen:
    """Collects a runner's reports in order."""

    runner: Runner
    reports: list[JobEvent | tuple[Sequence[str], str, bool]] = field(default_factory=list)
    deaf: bool = False

    def on_event(self, one: JobEvent | tuple[Sequence[str], str, bool]) -> None:
        if self.deaf:
            raise KeyError("nobody hears that")
        self.reports.append(one)

    async def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < deadline, self.reports
            await asyncio.sleep(0.01)

    def ended(self, name: str) -> bool:
        return any(isinstance(one.event, Ended) and one.job == name for one in self.events)

    @property
    def events(self) -> list[JobEvent]:
        return [one for one in self.reports if isinstance(one, JobEvent)]

    @property
    def lost(self) -> list[tuple[Sequence[str], str, bool]]:
        return [one for one in self.reports if isinstance(one, tuple)]


def with_runner(
    test: Callable[[Seen], Coroutine[Any, Any, None]], *arguments: str, devices: str = "cpu"
) -> None:
    """Runs a test on an event loop with a runner, and checks that nothing of the runner remains."""

    async def run() -> None:
        options = ServeOptions(token="secret", devices=devices)
        runner = Runner(
            options,
            lambda event: seen.on_event(event),
            lambda ids, why, blamed: seen.on_event((ids, why, blamed)),
            IMPATIENT,
            (FAKE, *arguments),
        )
        seen = Seen(runner)
        await runner.start()
        pids = [runner.facts.pid]
        try:
            await test(seen)
            pids.append(runner.facts.pid)
        finally:
            await runner.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
        assert not runner.ready

    asyncio.run(run())


def test_a_job_is_handed_over_and_its_events_arrive_in_order() -> None:
    async def test(seen: Seen) -> None:
        assert seen.runner.ready and seen.runner.facts.nodes == 7
        await seen.runner.run(job("a"))
        await seen.until(lambda: seen.ended("a"))
        assert [one.event.kind for one in seen.events] == ["started", "ended"]
        assert await seen.runner.ask(GetObjectInfo()) == b"{}"
        with pytest.raises(RunError, match="no figures"):
            await seen.runner.stats()

    with_runner(test)


def test_a_runner_that_dies_is_replaced_and_names_the_jobs_that_it_had() -> None:
    async def test(seen: Seen) -> None:
        first = seen.runner.facts.pid
        await seen.runner.run(job("a"))
        await seen.runner.run(job("stays", "stay"))
        await seen.runner.run(job("kills", "die"))
        await seen.until(lambda: bool(seen.lost))
        assert not seen.runner.ready
        ((jobs, why, blamed),) = seen.lost
        # without the runner's output, because clients read this
        assert list(jobs) == ["kills", "stays"] and why.endswith("exit status 9")
        # its earlier reports come first
        before = seen.reports[: seen.reports.index((jobs, why, blamed))]
        assert any(isinstance(one, JobEvent) and isinstance(one.event, Warned) for one in before)
        waiting = asyncio.create_task(seen.runner.run(job("b")))  # while no runner is available
        assert await seen.runner.ask(GetObjectInfo()) == b"{}"  # from the next runner
        await waiting
        await seen.until(lambda: seen.ended("b"))
        assert seen.runner.ready and seen.runner.restarts == 1 and seen.runner.facts.pid != first

    with_runner(test)


def test_child_processes_end_with_the_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs run in the runner: they do not get the server's token, and leave no processes."""
    monkeypatch.setenv("KATZ_TOKEN", "secret")

    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "leave something behind"))
        await seen.until(lambda: bool(seen.lost))
        (left,) = [int(one.event.message) for one in seen.events if isinstance(one.event, Warned)]
        await seen.until(lambda: not runs(left))

    with_runner(test)


def test_a_runner_is_replaced_whatever_goes_wrong_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The listener for the runner's end fails, then the first two restarts get no socket."""
    monkeypatch.setattr("katz_graph.web.runner_client.manager.FIRST_PAUSE", 0.05)

    async def test(seen: Seen) -> None:
        tries = 0
        make = socket.socketpair

        def none(*how: Any) -> tuple[socket.socket, socket.socket]:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise OSError(24, "Too many open files")
            if tries == 2:
                raise TypeError("odd")
            return make(*how)

        monkeypatch.setattr("katz_graph.ipc.child.socket.socketpair", none)
        seen.deaf = True
        await seen.runner.run(job("a", "die"))
        await seen.until(lambda: tries == 3 and seen.runner.ready)

    with_runner(test)


def test_a_job_that_cannot_be_sent_is_refused_and_others_are_not() -> None:
    async def test(seen: Seen) -> None:
        with pytest.raises(TypeError):
            await seen.runner.run(replace(job("a"), prompt={"1": object()}))
        await seen.runner.run(job("b"))
        seen.runner.refuse()
        with pytest.raises(RunnerDown):
            await seen.runner.run(job("c"))

    with_runner(test)


def test_a_cancelled_close_kills_a_hung_runner() -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "hold the interpreter"))
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seen.runner.close(), 0.2)
        assert time.monotonic() - began < 1

    with_runner(test)


def test_a_runner_with_a_blocked_interpreter_is_killed_and_replaced() -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "hold the interpreter"))
        began = time.monotonic()
        # the next runner answers earlier requests
        assert await seen.runner.ask(GetObjectInfo()) == b"{}"
        assert time.monotonic() - began < 6 * IMPATIENT.silence
        await seen.until(lambda: bool(seen.lost) and seen.runner.ready)
        assert list(seen.lost[0][0]) == ["a"] and "blocks the interpreter" in seen.lost[0][1]

    with_runner(test)


@pytest.mark.defect(23)
@pytest.mark.parametrize("draining", [False, True], ids=["", "that gets no more jobs"])
def test_a_runner_is_replaced_for_a_job_that_does_not_stop_and_none_is_blamed(
    draining: bool,
) -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "stay"))
        if draining:
            await seen.runner.run(job("c", "wear out"))
            await seen.until(lambda: not seen.runner.ready)
        began, first = time.monotonic(), seen.runner.facts.pid
        seen.runner.replace("cancelled job a did not stop")
        await seen.until(lambda: bool(seen.lost) and seen.runner.ready)
        assert time.monotonic() - began < 5 and seen.runner.facts.pid != first
        jobs, why, blamed = seen.lost[0]
        assert list(jobs) == ["a"] and "job a did not stop" in why and not blamed
        await seen.runner.run(job("b", "die"))
        await seen.until(lambda: len(seen.lost) == 2)
        assert seen.lost[1][2], "who dies by itself is blamed"

    with_runner(test)


def children() -> set[int]:
    listed = Path("/proc/self/task").glob("*/children")
    return {int(pid) for one in listed for pid in one.read_text().split()}


@pytest.mark.defect(23)
def test_a_process_that_was_prepared_is_the_next_runner() -> None:
    async def test(seen: Seen) -> None:
        before = children()
        seen.runner.prepare()
        seen.runner.prepare()
        await seen.until(lambda: len(children() - before) == 1)
        (prepared,) = children() - before
        await seen.runner.run(job("a", "stay"))
        seen.runner.replace("cancelled job a did not stop")
        await seen.until(lambda: bool(seen.lost) and seen.runner.ready)
        assert seen.runner.facts.pid == prepared

    with_runner(test)


@pytest.mark.defect(23)
@pytest.mark.parametrize("waits", [0.05, 60.0], ids=["not needed in time", "the server ends"])
def test_a_prepared_process_that_is_not_needed_ends(
    monkeypatch: pytest.MonkeyPatch, waits: float
) -> None:
    monkeypatch.setattr("katz_graph.web.runner_client.manager.STANDBY_S", waits)
    before = children()

    async def test(seen: Seen) -> None:
        running = children()
        seen.runner.prepare()
        await seen.until(lambda: len(children() - running) == 1)
        if waits < 1:
            await seen.until(lambda: children() == running)
            assert seen.runner.ready and not seen.lost

    with_runner(test)
    assert children() == before


@pytest.mark.defect(31)
def test_a_check_waits_for_the_next_runner_and_two_that_it_ends_are_enough() -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "stay"))
        checked = await seen.runner.ask(Check({"dies": 1}, None))
        assert checked.notes == ("checked by the next one",)
        await seen.until(lambda: bool(seen.lost))
        assert not seen.lost[0][2], "the check may be why it ended: no job is blamed"
        with pytest.raises(RunnerDown, match="the runner has ended"):
            await seen.runner.ask(Check({"dies": 9}, None))
        Path(tempfile.gettempdir(), f"katz-fake-{os.getpid()}-9").unlink()

    with_runner(test)


def test_a_runner_that_lost_a_device_for_good_ends_its_jobs_and_is_replaced() -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("stays", "stay"))
        await seen.runner.run(job("a", "wear out"))
        await seen.until(lambda: seen.ended("a"))
        assert not seen.runner.ready and seen.runner.restarts == 0  # one job is still running
        waiting = asyncio.create_task(seen.runner.run(job("b")))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await seen.runner.cancel("stays")
        await waiting
        await seen.until(lambda: seen.ended("b"))
        assert seen.ended("stays") and not seen.lost and seen.runner.restarts == 1

    with_runner(test)


def test_the_next_runner_does_without_a_device_that_is_lost_for_good(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If no device would be left, all are tried again: a device that fails sometimes is better than
    none.
    """

    async def test(seen: Seen) -> None:
        for number, (lost, left_out) in enumerate(
            [("cpu:1", ("cpu:1",)), ("cpu:2", ("cpu:1", "cpu:2")), ("cpu:0", ())], 1
        ):
            await seen.runner.run(job(f"a{number}", f"wear out {lost}"))
            await seen.until(lambda name=f"a{number}": seen.ended(name))
            await seen.runner.run(job(f"b{number}"))  # on the next runner
            assert seen.runner.restarts == number and seen.runner.facts.excluded == left_out
        assert (
            "excluded until the server is restarted: cpu:1; remaining: cpu:0, cpu:2" in caplog.text
        )

    with_runner(test, devices="cpu*3")


def test_a_device_that_does_not_come_back_with_a_new_runner_is_left_out(tmp_path: Path) -> None:
    async def test(seen: Seen) -> None:
        assert seen.runner.facts.excluded == ()
        await seen.runner.run(job("a", "die"))
        await seen.runner.run(job("b"))
        assert seen.runner.facts.excluded == ("cpu:1",)

    with_runner(test, "--once", str(tmp_path / "started"), "--absent", "cpu:1", devices="cpu*2")


def test_a_first_start_without_one_of_its_devices_fails(tmp_path: Path) -> None:
    (tmp_path / "started").touch()
    with pytest.raises(RunError, match=r"^device cpu:1: it is gone$"):
        with_runner(
            lambda seen: asyncio.sleep(0),
            "--once",
            str(tmp_path / "started"),
            "--absent",
            "cpu:1",
            devices="cpu*2",
        )


def test_an_event_that_is_not_as_agreed_breaks_nothing() -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("a", "speak nonsense"))
        await seen.until(lambda: seen.ended("a"))
        assert [one.event.status for one in seen.events if isinstance(one.event, Ended)] == [
            "failed"
        ]
        assert seen.runner.ready and seen.runner.restarts == 0

    with_runner(test)


def test_a_job_that_is_cancelled_while_there_is_no_runner_ends_cancelled(tmp_path: Path) -> None:
    async def test(seen: Seen) -> None:
        await seen.runner.run(job("kills", "die"))
        await seen.until(lambda: bool(seen.lost))
        waiting = asyncio.create_task(seen.runner.run(job("b")))
        unstarted = asyncio.create_task(seen.runner.run(job("c")))
        await asyncio.sleep(0.05)
        await seen.runner.cancel("b")
        await waiting
        assert [one.event.status for one in seen.events if isinstance(one.event, Ended)] == [
            "cancelled"
        ]
        await seen.runner.close()  # while the next runner does not start
        with pytest.raises(RunnerDown):
            await unstarted

    with_runner(test, "--once", str(tmp_path / "started"))


def test_a_first_process_that_the_fork_server_cannot_run_is_replaced() -> None:
    async def start(forks: ForkServer) -> None:
        runner = Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            IMPATIENT,
            (FAKE,),
            first=forks.fork_early("absent_module:run"),
        )
        await runner.start()
        assert await runner.ask(GetObjectInfo()) == b"{}"
        await runner.close()

    with ForkServer(module="json") as forks:
        asyncio.run(start(forks))


def test_a_runner_is_asked_before_it_is_ready_and_jobs_wait_until_it_is(tmp_path: Path) -> None:
    """The server accepts requests as soon as its port is open: clients immediately ask for node
    types while the devices are still starting.
    """

    async def start() -> None:
        events: list[JobEvent] = []
        runner = Runner(
            ServeOptions(),
            events.append,
            lambda ids, why, blamed: None,
            IMPATIENT,
            (FAKE, "--until", str(tmp_path / "ready")),
        )
        early = asyncio.create_task(runner.ask(GetObjectInfo()))  # before a process exists
        starting = asyncio.create_task(runner.start())
        assert await early == b"{}" and not runner.ready and not starting.done()
        taken = asyncio.create_task(runner.run(job("a")))
        await asyncio.sleep(0.2)
        assert not taken.done() and not events
        (tmp_path / "ready").touch()
        await starting
        await taken
        assert runner.ready and runner.facts.nodes == 7
        while not any(isinstance(one.event, Ended) for one in events):
            await asyncio.sleep(0.01)
        assert [one.event.kind for one in events] == [
            "started",
            "ended",
        ]  # handed over once
        await runner.close()

    asyncio.run(start())


def test_requests_without_a_ready_runner_get_retry_later(tmp_path: Path) -> None:
    """The wait is bounded, and closing the server ends it."""

    def hopeless(waiting: float) -> Runner:
        return Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            replace(IMPATIENT, waiting=waiting),
            ("-c", "import time; time.sleep(1000)"),
        )

    async def start() -> None:
        runner = hopeless(waiting=0.3)
        starting = asyncio.create_task(runner.start())
        with pytest.raises(RunnerDown, match=r"was not ready within 0\.3 s") as refused:
            await runner.ask(GetObjectInfo())
        assert (refused.value.status, refused.value.retry_after) == (503, 5)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await runner.close()

        runner = hopeless(waiting=30)
        asked = asyncio.create_task(runner.ask(GetObjectInfo()))
        await asyncio.sleep(0.05)
        assert not asked.done()
        runner.refuse()
        with pytest.raises(RunnerDown, match="the server is shutting down"):
            await asked
        await runner.close()

    asyncio.run(start())


def test_a_fork_server_without_ready_runners_is_not_used_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    async def start() -> None:
        program = (FAKE, "--once", str(tmp_path / "started"))
        runner = Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            IMPATIENT,
            program,
            lambda: asked.append("again"),
        )
        await runner.start()
        await runner.run(job("kills", "die"))
        while caplog.text.count("the next try") < 2:
            await asyncio.sleep(0.02)
        await runner.close()

    with caplog.at_level(logging.ERROR, "katz.runner"):
        asyncio.run(asyncio.wait_for(start(), 30))
    assert len(asked) == 2  # for the first runner, and for the one that failed


def test_a_failing_first_start_is_reported_in_one_line() -> None:
    async def start() -> None:
        runner = Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            IMPATIENT,
            (FAKE, "--fails", "no such device"),
        )
        with pytest.raises(RunError, match=r"^no such device$"):
            await runner.start()
        assert not runner.ready
        await runner.close()

    asyncio.run(start())


def test_a_start_that_is_given_up_leaves_nothing() -> None:
    """Ctrl-C may cancel a start while packs are imported."""

    async def start() -> None:
        before = below(os.getpid())
        runner = Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            IMPATIENT,
            ("-c", "import time; time.sleep(1000)"),
        )
        starting = asyncio.create_task(runner.start())
        while not (family := below(os.getpid()) - before):
            await asyncio.sleep(0.01)
        starting.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await runner.close()
        assert time.monotonic() - began < 3 and not any(map(runs, family))

    asyncio.run(start())


def test_a_start_is_given_up_wherever_it_is() -> None:
    """A cancelled start must end: otherwise a server that keeps a runner available would start
    runners for ever.
    """

    async def start(steps: int) -> None:
        before = below(os.getpid())
        runner = Runner(
            ServeOptions(), lambda event: None, lambda ids, why, blamed: None, IMPATIENT, (FAKE,)
        )
        starting = asyncio.create_task(runner.start())
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await runner.close()
        as_before(before)

    for steps in range(12):
        asyncio.run(start(steps))


def test_a_program_that_does_not_run_is_reported_with_the_reason() -> None:
    async def start() -> None:
        runner = Runner(
            ServeOptions(),
            lambda event: None,
            lambda ids, why, blamed: None,
            IMPATIENT,
            ("-c", "raise SystemExit('broken')"),
        )
        with pytest.raises(RunError, match="did not start: exit status 1; it last printed: broken"):
            await runner.start()
        await runner.close()

    asyncio.run(start())
