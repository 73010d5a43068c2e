"""Runs one runner process on the server's side: starts it, asks it, listens to it, and waits for
its end. Never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import TextIOWrapper
from typing import Any

from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.ipc.child import PYTHON, ChildOutput, describe_exit, kill_session, start_child
from katz_graph.ipc.heartbeat import Heartbeat
from katz_graph.web.options import RunnerStart
from katz_graph.web.runner_client.facts import RunnerFacts
from katz_graph.web.runner_client.messages import (
    Answer,
    Failed,
    FromRunner,
    Happened,
    Ping,
    Pong,
    Prepare,
    Ready,
    Refused,
    Start,
    Stop,
    Taken,
    ToRunner,
    WornOut,
)
from katz_graph.web.runner_client.wire import AsyncEnd, Numbered

PROGRAM = ("-m", "katz_graph.web.runner.main")
log = logging.getLogger("katz.runner")


class RunnerDown(KatzError):
    """The runner is not there, or ended before it answered. A client may ask again after some
    seconds.
    """

    status = 503
    retry_after = 5.0


class Unasked(RunnerDown):
    """The runner ended before it was asked, or before it was ready: the next one may be asked."""


class Lost(RunnerDown):
    """The runner ended under the question, which may be why: the next one may be asked once."""


@dataclass(frozen=True, slots=True)
class RunnerPatience:
    """Timeouts in seconds: `ping` between looks, of silence until a runner is taken to be stuck
    (`starting`: during heavy imports), for an answer (`waiting`: from a runner that is not ready),
    and for a runner to end by itself.
    """

    ping: float = 2.0
    silence: float = 10.0
    starting: float = 120.0
    answer: float = 60.0
    waiting: float = 120.0
    stop: float = 10.0


PATIENCE = RunnerPatience()


class RunnerProcess:
    """One runner process; make it with `spawn`. `ready` has its facts once it runs jobs, or why it
    does not get so (RunError or InputError with one line). `ended` has the reason as soon as the
    process is gone, after its last message was heard.
    """

    _process: subprocess.Popen[bytes]
    _output: ChildOutput
    _wire: AsyncEnd | None = None

    def __init__(self, heard: Callable[[FromRunner], None], patience: RunnerPatience) -> None:
        self.ready: asyncio.Future[RunnerFacts] = asyncio.get_running_loop().create_future()
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._heard, self._patience = heard, patience
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._heartbeat = Heartbeat(patience.ping)
        self._parted = False  # its connection has ended
        self._killed_for = ""
        self._suspects = 0  # questions under way that may be why it ends
        self.blames_jobs = True  # one of its jobs may be why it ended

    @classmethod
    async def spawn(
        cls,
        heard: Callable[[FromRunner], None],
        patience: RunnerPatience = PATIENCE,
        program: Sequence[str] = PROGRAM,
        workers: int | None = None,
    ) -> RunnerProcess:
        """Starts a process that is a runner from `begin` on; `program` is what Python runs. Raises
        RunError when there is no process.

        It has a session of its own, so that Ctrl-C reaches the server alone. `workers`: the
        descriptor of a connection to a fork server.
        """
        child = cls(heard, patience)
        inherited = () if workers is None else (workers,)
        command = [*PYTHON, *program, *(f"--workers={number}" for number in inherited)]
        try:
            child._process, ours = start_child(
                [*command, "--descriptor"],
                inherited=inherited,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            raise RunError(f"the runner cannot be started: {error.strerror or error}") from None
        assert child._process.stdout is not None
        printed = TextIOWrapper(child._process.stdout, "utf-8", "replace", "\n")
        child._output = ChildOutput(
            printed, lambda line: log.info("%s", line.rstrip("\n")), "runner"
        )
        try:
            child._wire = await AsyncEnd.connect(ours, child._message, child._part)
            return child
        except BaseException:
            await child.give_up()
            raise

    def prepare(self, start: RunnerStart) -> None:
        """Has the process import what a runner with these options needs, before `begin`."""
        self.send(Prepare(_without_token(start)))

    def begin(self, start: RunnerStart) -> None:
        """Has the process get ready to run jobs; it may be asked before it is."""
        asyncio.get_running_loop().call_later(self._patience.ping, self._watch)
        self.send(Start(_without_token(start)))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Tells whether it runs jobs, or did before it ended."""
        return self.ready.done() and self.ready.exception() is None

    def send(self, message: ToRunner) -> None:
        """Sends a message; does nothing where there is no connection any more, or not yet."""
        if self._wire is not None:
            self._wire.send(message)

    async def ask(self, question: Any) -> Any:
        """Returns its answer to a `Question` as soon as it can give it. Raises KatzError with its
        objection, RunnerDown when it has ended.
        """
        if self._parted or self._wire is None:
            raise Unasked(f"the runner has ended: {await asyncio.shield(self.ended)}")
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._suspects += question.runs_packs
        try:
            self._wire.send(question, number)
            return question.answer.validate_python(await answer)
        finally:
            del self._asked[number]
            self._suspects -= question.runs_packs

    async def close(self) -> None:
        """Asks it to end, waits, and kills it with all that its packs started. Kills it at once
        when this is cancelled.
        """
        self.send(Stop())
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self.ended), self._patience.stop)
        finally:
            self.kill("the server ends")
            await self.ended

    async def give_up(self) -> None:
        """Ends a process that did not get ready, at once."""
        self.kill("it did not get ready")
        await self.close()

    def kill(self, why: str, blamed: bool = True) -> None:
        """Kills the process and its children. `blamed`: one of its jobs may be the reason."""
        if self._process.returncode is None:  # not collected: the number still means this session
            if not self._killed_for:
                self._killed_for, self.blames_jobs = why, blamed
            kill_session(self.pid)

    def _message(self, arrived: Numbered) -> None:
        self._heartbeat.heard()
        asked = self._asked.get(arrived.number)
        match arrived.message:
            case Pong():
                return
            case Ready(facts):
                self.ready.set_result(replace(facts, pid=self.pid))
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
            case Taken() | WornOut() | Happened() as message:
                self._heard(message)

    def _watch(self) -> None:
        """Pings and counts its silence, again and again until it has ended."""
        self._heartbeat.tick()
        allowed = self._patience.silence if self.ready.done() else self._patience.starting
        if self._heartbeat.silence > allowed:
            self.kill(
                f"it did not answer for {allowed:g} s: a pack's native code keeps the interpreter, "
                "or the machine is overloaded"
            )
        if not self.ended.done():
            self.send(Ping())
            asyncio.get_running_loop().call_later(self._patience.ping, self._watch)

    def _part(self) -> None:
        """Takes in that its connection has ended."""
        self._parted = True
        self._burying = asyncio.create_task(self._bury())

    async def _bury(self) -> None:
        """Waits for the process's end, kills what its packs started, and reports how it ended."""
        try:
            await asyncio.to_thread(self._process.wait, self._patience.stop)
        except subprocess.TimeoutExpired:
            self.kill("it left its connection and went on")
            await asyncio.to_thread(self._process.wait)
        kill_session(self.pid)
        await asyncio.to_thread(self._output.join)
        why = self._killed_for or describe_exit(self._process.returncode)  # clients read it
        if not self.ready.done():  # what it printed is of no client's job
            told = f"the runner did not start: {self._output.after(why)}"
            self.ready.set_exception(RunError(told))
            self.ready.exception()  # asked for: nobody may wait for it any more
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
