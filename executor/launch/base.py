"""Declares the interfaces that start and control a worker. Must not know heartbeats and
replacement.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Protocol

from katz_graph.core.phases import Phase
from katz_graph.executor.messages import Hello
from katz_graph.executor.transport.connection import MessageChannel
from katz_graph.executor.transport.vocabulary import fingerprint


def hello(phases: Sequence[Phase] = ()) -> Hello:
    """Returns the first message of a worker, sent when it has loaded its libraries. `phases`: of
    its start.
    """
    return Hello(os.getpid(), _version(), phases)


def mismatch(said: Hello) -> str:
    """Explains why a worker with this `hello` is unusable; empty if it is usable. Other machines
    may have another version installed.
    """
    if said.version == (ours := _version()):
        return ""
    return (
        f"it runs katz-graph {said.version}, the main process {ours}; install the same version on "
        "all machines"
    )


def _version() -> str:
    """Returns the version and the vocabulary fingerprint, because vocabularies change within a
    development version.
    """
    return f"{version('katz-graph')}/{fingerprint()}"


class Launched(Protocol):
    """Controls a started worker, which sends `hello` on its connection."""

    @property
    def pid(self) -> int | None:
        """Returns the worker's process id on this host; None if it runs on another host."""

    @property
    def phases(self) -> Sequence[Phase]:
        """Returns the phases of the process that it was forked from."""

    @property
    def connection(self) -> MessageChannel:
        """Returns the driver's end. The reader closes it."""

    def is_alive(self) -> bool: ...

    def kill(self) -> None:
        """Kills the worker and the processes that it started. Does not wait."""

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds. Returns whether the worker has ended."""

    def last_words(self) -> str:
        """Describes in one line how the worker ended, as far as known; empty while it runs."""


class Launcher(Protocol):
    """Starts workers on one host in one way. Equal launchers start equal workers."""

    @property
    def in_process(self) -> bool:
        """Returns whether workers are threads of this process. Such a worker accepts objects that
        cannot be serialized, cannot crash alone, and is not replaced.
        """

    @property
    def any_device(self) -> bool:
        """Returns whether a worker can start before its device is assigned, so that it can be a
        spare.
        """

    def launch(self, name: str, background: bool = False) -> Launched:
        """Starts a worker. `background`: its loading may yield to other work. Raises RunError or
        OSError if it cannot be started.
        """
