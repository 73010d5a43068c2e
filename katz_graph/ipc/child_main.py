"""Sets up and ends a child process: adopts inherited sockets, ends with its parent."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from typing import NoReturn


def ignore_signals() -> None:
    """Ignores SIGINT and SIGTERM, because the parent decides when to end. Children inherit this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def adopt(descriptor: int) -> socket.socket:
    """Opens an inherited socket and stops this process's children from inheriting it."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def end() -> NoReturn:
    """Ends this process immediately, with all processes that packs started in its session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with(descriptor: int, unless: int | None = None) -> threading.Thread:
    """Ends this process as soon as the peer of a connected socket disconnects, even if it is busy.
    Stops watching when the peer of `unless` disconnects.
    """
    watched = select.poll()
    for one in (descriptor,) if unless is None else (descriptor, unless):
        watched.register(one, select.POLLRDHUP)  # hang-up and error are always reported
    watching = threading.Thread(None, _watch, "katz-end", (watched, descriptor), daemon=True)
    watching.start()
    return watching


def _watch(watched: select.poll, descriptor: int) -> None:
    if descriptor in dict(watched.poll()):
        end()
