"""The main program of a worker process: end with the driver, set the threads, then import what is heavy and serve.

Imports nothing heavy itself: that the process ends with its driver has to hold while torch is being imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import socket
import sys
import threading
import traceback
from typing import Any, NoReturn

from katz_graph.garbage import expect_imports, imports_are_done
from katz_graph.settings import prepare_to_compute

PYTHON = (sys.executable, "-P", "-u", "-X", "faulthandler")
SWITCH = 5e-4  # seconds; what arrives is taken in beside the thread that computes, which else keeps the interpreter for 5 ms


def worker_command(descriptor: int, threads: int, entry: str) -> list[str]:
    """What starts a process as a worker whose connection is there."""
    options = ["--descriptor", str(descriptor), "--threads", str(threads), "--entry", entry]
    return [*PYTHON, "-m", "katz_graph.executor.launch.worker_main", *options]


def main() -> None:
    descriptor, _, entry = begin("--entry")
    run_worker(entry, descriptor)


def begin(option: str) -> tuple[int, int, str]:
    """Get ready to import and to compute; the descriptor of the connection, the threads, and an option, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument(option, dest="option", required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # it ends with its driver, which may have work to end before
        signal.signal(number, signal.SIG_IGN)
    os.set_inheritable(arguments.descriptor, False)
    prepare_to_compute(arguments.threads)
    expect_imports()
    return arguments.descriptor, arguments.threads, arguments.option


def run_worker(entry: str, descriptor: int) -> NoReturn:
    """Be a worker that ends with its connection; the last that this process does."""
    try:
        connected = socket.socket(fileno=descriptor)
        end_with(connected.fileno())
        run_entry(entry, connected)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # whatever threads there are
    end()


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


def end() -> NoReturn:
    """End this process now, with what a pack started in its session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def run_entry(entry: str, connected: socket.socket) -> None:
    """Call the function that `entry` (module:function) names with a connection."""
    module, _, function = entry.partition(":")
    serve: Any = getattr(importlib.import_module(module), function)
    sys.setswitchinterval(SWITCH)
    imports_are_done()
    from katz_graph.executor.transport.connection import Connection  # loads torch

    serve(Connection(connected))


if __name__ == "__main__":
    main()
