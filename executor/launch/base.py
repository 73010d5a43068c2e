"""What every way of starting a worker gives. Knows nothing of heartbeats and replacement."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Protocol

from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.vocabulary import fingerprint


def hello() -> dict[str, Any]:
    """What a worker says first, when it has loaded what it needs."""
    return {"pid": os.getpid(), "version": _version()}


def mismatch(said: Mapping[str, Any]) -> str:
    """What keeps a worker that said so from being of use; empty when nothing does. Other machines
    may have another version installed.
    """
    ours, theirs = _version(), said.get("version")
    return "" if theirs == ours else f"it runs katz-graph {theirs}, and this is {ours}; install the same version on all machines"


def _version() -> str:
    """Versions under development have one number and many vocabularies."""
    return f"{version('katz-graph')}/{fingerprint()}"


class Launched(Protocol):
    """A worker that was started; it says `hello` on its connection."""

    @property
    def pid(self) -> int | None:
        """Its process on this host; None where it runs on another one."""

    @property
    def connection(self) -> Connection:
        """The driver's end. Whoever reads from it closes it."""

    def is_alive(self) -> bool: ...

    def kill(self) -> None:
        """End it, and what it started, at once. Does not wait."""

    def wait(self, timeout: float) -> bool:
        """Whether it has ended, after at most `timeout` seconds."""

    def last_words(self) -> str:
        """How it ended, as far as one can tell, in one line; empty while it lives."""


class Launcher(Protocol):
    """One way of starting workers on one host. Equal launchers start equal workers."""

    @property
    def any_device(self) -> bool:
        """Whether a worker can be started first and told its device later, so that a spare is of
        use.
        """

    def launch(self, name: str, background: bool = False) -> Launched:
        """Start a worker; `background`: what it loads may wait for others. RunError or OSError when
        it cannot be started.
        """
