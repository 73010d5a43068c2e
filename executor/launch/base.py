"""Declares what starts a worker, and what controls it. Must not know heartbeats and replacement."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Protocol

from katz_graph.executor.messages import Hello
from katz_graph.executor.transport.connection import MessageChannel
from katz_graph.executor.transport.vocabulary import fingerprint


def hello() -> Hello:
    """Makes the first message of a worker, which has loaded what it needs."""
    return Hello(os.getpid(), _version())


def mismatch(said: Hello) -> str:
    """Explains why a worker with this `hello` is of no use; empty when it is of use. Other machines
    may have another version installed.
    """
    if said.version == (ours := _version()):
        return ""
    return (
        f"it runs katz-graph {said.version}, and this is {ours}; install the same version on "
        "all machines"
    )


def _version() -> str:
    """Names the version and the vocabulary: versions under development have one number and many
    vocabularies.
    """
    return f"{version('katz-graph')}/{fingerprint()}"


class Launched(Protocol):
    """Controls a worker that was started; it says `hello` on its connection."""

    @property
    def pid(self) -> int | None:
        """Returns its process id on this host; None where it runs on another one."""

    @property
    def connection(self) -> MessageChannel:
        """Returns the driver's end. Whoever reads from it closes it."""

    def is_alive(self) -> bool: ...

    def kill(self) -> None:
        """Ends it, and what it started, at once. Does not wait."""

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds; returns whether it has ended."""

    def last_words(self) -> str:
        """Says how it ended, as far as one can tell, in one line; empty while it lives."""


class Launcher(Protocol):
    """Starts workers on one host in one way. Equal launchers start equal workers."""

    @property
    def in_process(self) -> bool:
        """Returns whether its worker is a thread of this process: it reaches what cannot be sent,
        cannot be lost alone, and is not replaced.
        """

    @property
    def any_device(self) -> bool:
        """Returns whether a worker can be started first and told its device later, so that a spare
        is of use.
        """

    def launch(self, name: str, background: bool = False) -> Launched:
        """Starts a worker; `background`: what it loads may wait for others. RunError or OSError
        when it cannot be started.
        """
