"""What a child process does first and last: heeds no signal, takes over what it inherits, ends with its parent and all that it started."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from typing import NoReturn


def ignore_signals() -> None:
    """The parent decides when to end, and may have work to end before; what is started here inherits this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def adopt(descriptor: int) -> socket.socket:
    """An inherited socket, which what is started here does not inherit."""
    os.set_inheritable(descriptor, False)
    return socket.socket(fileno=descriptor)


def end() -> NoReturn:
    """End this process now, with what a pack started in its session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def end_with(descriptor: int, unless: int | None = None) -> threading.Thread:
    """End this process when the other side of a connected socket is gone, whatever the process does then. The thread that sees to it ends
    when the other side of `unless` is gone."""
    watched = select.poll()
    for one in (descriptor,) if unless is None else (descriptor, unless):
        watched.register(one, select.POLLRDHUP)  # hang-up and error are always told
    watching = threading.Thread(target=_watch, args=(watched, descriptor), name="katz-end", daemon=True)
    watching.start()
    return watching


def _watch(watched: select.poll, descriptor: int) -> None:
    if descriptor in dict(watched.poll()):
        end()
