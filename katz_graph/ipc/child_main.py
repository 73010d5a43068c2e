"""Begins and ends a child process: takes over what it inherits, ends with its parent."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from typing import NoReturn


def ignore_signals() -> None:
    """Ignores signals: the parent decides when to end. Inherited by processes started here."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def adopt(descriptor: int) -> socket.socket:
    """Takes over an inherited socket, which processes that are started here do not inherit."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def end() -> NoReturn:
    """Ends this process now, with all that a pack started in its session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with(descriptor: int, unless: int | None = None) -> threading.Thread:
    """Ends this process when the other side of a connected socket is gone, whatever it does then.

    The thread that watches ends when the other side of `unless` is gone.
    """
    watched = select.poll()
    for one in (descriptor,) if unless is None else (descriptor, unless):
        watched.register(one, select.POLLRDHUP)  # hang-up and error are always told
    watching = threading.Thread(None, _watch, "katz-end", (watched, descriptor), daemon=True)
    watching.start()
    return watching


def _watch(watched: select.poll, descriptor: int) -> None:
    if descriptor in dict(watched.poll()):
        end()
