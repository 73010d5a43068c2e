"""Declares what starts a worker, and what controls it. Must not know heartbeats and replacement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Protocol

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.vocabulary import fingerprint


def hello() -> dict[str, Any]:
    """Makes the first message of a worker, which has loaded what it needs."""
    return {"pid": os.getpid(), "version": _version()}


def mismatch(said: Mapping[str, Any]) -> str:
    """Explains why a worker with this `hello` is of no use; empty when it is of use. Other machines
    may have another version installed.
    """
    ours, theirs = _version(), said.get("version")
    return "" if theirs == ours else f"it runs katz-graph {theirs}, and this is {ours}; install the same version on all machines"


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
    def connection(self) -> Connection:
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
    def any_device(self) -> bool:
        """Returns whether a worker can be started first and told its device later, so that a spare
        is of use.
        """

    def launch(self, name: str, background: bool = False) -> Launched:
        """Starts a worker; `background`: what it loads may wait for others. RunError or OSError
        when it cannot be started.
        """
