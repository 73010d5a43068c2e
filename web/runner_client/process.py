"""Supervises one runner process on the server's side: starts it, sends questions, receives events,
and waits for its exit. Never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import IO, Any, Protocol

from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.ipc.child import PYTHON, ChildOutput, describe_exit, kill_session, start_child
from katz_graph.ipc.heartbeat import Heartbeat, Ping, Pong, Stop
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner_client.facts import RunnerFacts
from katz_graph.web.runner_client.messages import (
    Answer,
    Failed,
    FromRunner,
    Happened,
    Prepare,
    Question,
    Ready,
    Refused,
    ReplaceRequested,
    Reply,
    Start,
    Taken,
    ToRunner,
)
from katz_graph.web.runner_client.wire import AsyncEnd, Numbered

PROGRAM = ("-m", "katz_graph.web.runner.main")
log = logging.getLogger("katz.runner")


class RunnerDown(KatzError):
    """Reports that no runner exists, or that it ended before it answered. A client may retry after
    some seconds.
    """

    status = 503
    retry_after = 5.0


class Unasked(RunnerDown):
    """The runner ended before the question was sent, or before it was ready. The next runner may be
    asked.
    """


class Lost(RunnerDown):
    """The runner ended during the question, which may be the cause. The next runner may be asked
    once.
    """


class NeverAnswered(RunError):
    """The runner ended before it sent a message, so the fork server may be the cause."""


class ChildProcess(Protocol):
    """A process that leads a session. Its id is not reused before `release`."""

    @property
    def pid(self) -> int | None: ...

    @property
    def code(self) -> int | None:
        """Exit status, or the negative number of the killing signal; None before the end, and if
        it is unknown.
        """

    def wait(self, seconds: float) -> bool:
        """Waits until the process ends; returns whether it has."""

    def kill(self) -> None:
        """Kills its session."""

    def release(self) -> None:
        """Kills the remaining processes of its session after its end."""


class ForkedProcess(ChildProcess, Protocol):
    """A process that a fork server forks."""

    connected: socket.socket
    output: IO[str]


@dataclass(frozen=True, slots=True)
class Spawned:
    """A child of this process."""

    process: subprocess.Popen[bytes]

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def code(self) -> int | None:
        return self.process.returncode

    def wait(self, seconds: float) -> bool:
        try:
            self.process.wait(None if math.isinf(seconds) else seconds)
            return True
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        kill_session(self.process.pid)

    release = kill


@dataclass(frozen=True, slots=True)
class RunnerPatience:
    """Holds timeouts in seconds."""

    ping: float = 2.0  # interval of pings
    silence: float = 10.0  # without a message, after which the runner counts as stuck
    starting: float = 120.0  # the same during startup, because of long imports
    answer: float = 60.0  # for an answer from a ready runner
    waiting: float = 120.0  # for an answer if no runner is ready
    stop: float = 10.0  # for the runner to exit by itself


PATIENCE = RunnerPatience()


class RunnerProcess:
    """Represents one runner process; create it with `spawn` or `forked`. `ready` resolves to the
    runner's facts when it runs jobs, or fails with RunError or InputError of one line. `ended`
    resolves to the reason of the exit after the last message is handled.
    """

    _process: ChildProcess
    _output: ChildOutput
    _wire: AsyncEnd | None = None

    def __init__(self, on_message: Callable[[FromRunner], None], patience: RunnerPatience) -> None:
        self.ready: asyncio.Future[RunnerFacts] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._on_message, self._patience = on_message, patience
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._heartbeat = Heartbeat(patience.ping)
        self._has_answered = False
        self._parted = False  # the connection has ended
        self._killed_for = ""
        self._suspects = 0  # pending questions that may cause a crash
        self.blames_jobs = True  # whether a job may be the cause of the exit

    @classmethod
    async def spawn(
        cls,
        on_message: Callable[[FromRunner], None],
        patience: RunnerPatience = PATIENCE,
        program: Sequence[str] = PROGRAM,
        workers: int | None = None,
    ) -> RunnerProcess:
        """Starts a process that becomes a runner with `begin`. `program` are Python's arguments.
        Raises RunError if the process cannot be started.

        The process has a separate session, so that Ctrl-C reaches only the server. `workers`: the
        descriptor of a connection to a fork server.
        """
        child = cls(on_message, patience)
        inherited = () if workers is None else (workers,)
        command = [*PYTHON, *program, *(f"--workers={number}" for number in inherited)]
        try:
            process, ours = start_child(
                [*command, "--descriptor"],
                inherited=inherited,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise RunError(f"the runner cannot be started: {error.strerror or error}") from None
        assert process.stdout is not None
        await child._connect(
            Spawned(process), TextIOWrapper(process.stdout, "utf-8", "replace", "\n"), ours
        )
        return child

    @classmethod
    async def forked(
        cls,
        on_message: Callable[[FromRunner], None],
        patience: RunnerPatience,
        process: ForkedProcess,
    ) -> RunnerProcess:
        """Takes over a process that a fork server forks, perhaps later; otherwise as `spawn`."""
        child = cls(on_message, patience)
        await child._connect(process, process.output, process.connected)
        return child

    async def _connect(
        self, process: ChildProcess, printed: IO[str], connected: socket.socket
    ) -> None:
        self._process = process
        self._output = ChildOutput(
            printed, lambda line: log.info("%s", line.rstrip("\n")), "runner"
        )
        try:
            self._wire = await AsyncEnd.connect(connected, self._message, self._part)
        except BaseException:
            await self.give_up()
            raise

    def prepare(self, start: RunnerStart) -> None:
        """Starts the imports that a runner with these options needs, before `begin`."""
        self.send(Prepare(_without_token(start)))

    def begin(self, start: RunnerStart) -> None:
        """Starts the runner. Questions may be sent before it is ready."""
        asyncio.get_running_loop().call_later(self._patience.ping, self._watch)
        self.send(Start(_without_token(start)))

    @property
    def pid(self) -> int | None:
        """Returns the process id; None while a fork server is still to fork the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Returns whether the runner is ready, or was before it ended."""
        return self.ready.done() and self.ready.exception() is None

    def send(self, message: ToRunner) -> None:
        """Sends a message. Does nothing without a connection."""
        if self._wire is not None:
            self._wire.send(message)

    async def ask(self, question: Question[Reply]) -> Reply:
        """Sends a `Question` and returns the answer. Raises KatzError with the runner's error, or
        RunnerDown if the runner has ended.
        """
        if self._parted or self._wire is None:
            raise Unasked(f"the runner has ended: {await asyncio.shield(self.ended)}")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._suspects += question.runs_packs
        try:
            self._wire.send(question, number)
            found: Reply = question.answer.validate_python(await answer)
            return found
        finally:
            del self._asked[number]
            self._suspects -= question.runs_packs

    async def close(self) -> None:
        """Asks the runner to stop, waits, then kills it with its children. Kills it immediately if
        this call is cancelled.
        """
        self.send(Stop())
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), self._patience.stop)
        finally:
            self.kill("the server is shutting down")
            await self.ended

    async def give_up(self) -> None:
        """Kills a process that did not become ready."""
        self.kill("it did not become ready")
        await self.close()

    def kill(self, why: str, blamed: bool = True) -> None:
        """Kills the process and its children. `blamed`: one of its jobs may be the cause."""
        if self._process.code is None:
            if not self._killed_for:
                self._killed_for, self.blames_jobs = why, blamed
            self._process.kill()

    def _message(self, arrived: Numbered) -> None:
        self._heartbeat.received()
        self._has_answered = True
        asked = self._asked.get(arrived.number)
        match arrived.message:
            case Pong():
                return
            case Ready(facts):
                self.ready.set_result(replace(facts, pid=self.pid or 0))
            case Failed(message) as failed:
                if self.ready.done():
                    log.error("the runner failed: %s", message)
                else:
                    kind = InputError if failed.is_input else RunError
                    self.ready.set_exception(kind(message, tuple(failed.devices)))
            case Answer(value):
                if asked is not None and not asked.done():
                    asked.set_result(value)
            case Refused(message):
                if asked is not None and not asked.done():
                    asked.set_exception(RunError(message))
            case Taken() | ReplaceRequested() | Happened() as message:
                self._on_message(message)

    def _watch(self) -> None:
        """Sends pings and checks for silence, until the process has ended."""
        self._heartbeat.tick()
        allowed = self._patience.silence if self.ready.done() else self._patience.starting
        if self._heartbeat.silence > allowed:
            self.kill(
                f"it did not answer for {allowed:g} s: a pack's native code blocks the "
                f"interpreter, or the machine is overloaded"
            )
        if not self.ended.done():
            self.send(Ping())
            asyncio.get_running_loop().call_later(self._patience.ping, self._watch)

    def _part(self) -> None:
        """Handles the end of the connection."""
        self._parted = True
        self._cleaning_up = asyncio.create_task(self._clean_up())

    async def _clean_up(self) -> None:
        """Waits for the process to exit, kills its children, and reports how it ended."""
        if not await asyncio.to_thread(self._process.wait, self._patience.stop):
            self.kill("it closed its connection but kept running")
            await asyncio.to_thread(self._process.wait, math.inf)
        code = self._process.code
        self._process.release()
        await asyncio.to_thread(self._output.join)
        ending = "its exit status is unknown" if code is None else describe_exit(code)
        why = self._killed_for or ending  # clients read it
        if not self.ready.done():  # during startup, the output belongs to no client's job
            message = f"the runner did not start: {self._output.after(why)}"
            kind = RunError if self._has_answered else NeverAnswered
            self.ready.set_exception(kind(message))
            self.ready.exception()  # marks it as retrieved, because nothing may await `ready`
        if self._suspects:
            self.blames_jobs = False
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(
                    (Lost if self.is_ready else Unasked)(f"the runner has ended: {why}")
                )
        self.ended.set_result(why)


def _without_token(start: RunnerStart) -> RunnerStart:
    return replace(start, options=replace(start.options, token=None))
