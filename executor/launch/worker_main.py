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
from typing import Any

from katz_graph.garbage import expect_imports, imports_are_done
from katz_graph.settings import prepare_to_compute

BACKGROUND_NICENESS = 10
SWITCH = 5e-4  # seconds; what arrives is taken in beside the thread that computes, which else keeps the interpreter for 5 ms


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--entry", required=True)
    parser.add_argument("--background", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(arguments.descriptor, False)
    connected = socket.socket(fileno=arguments.descriptor)
    end_with(connected.fileno())
    prepare_to_compute(arguments.threads)
    expect_imports()
    try:
        if arguments.background:
            import_in_background(arguments.entry)
        run_entry(arguments.entry, connected)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # whatever threads there are
    end()


def end_with(descriptor: int) -> None:
    """End this process when the other side of a connected socket is gone, whatever the process does then."""
    watched = select.poll()
    watched.register(descriptor, select.POLLRDHUP)  # hang-up and error are always told
    threading.Thread(target=_watch, args=(watched,), name="katz-end", daemon=True).start()


def _watch(watched: select.poll) -> None:
    watched.poll()
    end()


def end() -> None:
    """End this process now, with what a pack started in its session."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def import_in_background(entry: str) -> None:
    """Import in a thread of low priority. On Linux a thread has its own, so the process serves with full priority later."""
    importing = threading.Thread(target=_import_nicely, args=(entry.partition(":")[0],))
    importing.start()
    importing.join()


def _import_nicely(module: str) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), BACKGROUND_NICENESS)
    importlib.import_module(module)


def run_entry(entry: str, connected: socket.socket) -> None:
    """Call the function that `entry` (module:function) names with a connection."""
    module, _, function = entry.partition(":")
    serve: Any = getattr(importlib.import_module(module), function)
    sys.setswitchinterval(SWITCH)
    imports_are_done()
    from katz_graph.executor.transport.connection import Connection

    serve(Connection(connected))


if __name__ == "__main__":
    main()
