"""The main program of a worker process: end with the driver, set the threads, then import what is heavy and serve.

Imports nothing heavy itself: that the process ends with its driver has to hold while torch is being imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import socket
import sys
import traceback
from typing import Any, NoReturn

from katz_graph.garbage import expect_imports, imports_are_done
from katz_graph.ipc.child import PYTHON
from katz_graph.ipc.child_main import adopt, end, end_with, ignore_signals
from katz_graph.settings import prepare_to_compute

SWITCH = 5e-4  # seconds; what arrives is taken in beside the thread that computes, which else keeps the interpreter for 5 ms


def worker_command(descriptor: int, threads: int, entry: str) -> list[str]:
    """What starts a process as a worker whose connection is there."""
    options = ["--descriptor", str(descriptor), "--threads", str(threads), "--entry", entry]
    return [*PYTHON, "-m", "katz_graph.executor.launch.worker_main", *options]


def main() -> None:
    connected, _, entry = begin("--entry")
    run_worker(entry, connected)


def begin(option: str) -> tuple[socket.socket, int, str]:
    """Get ready to import and to compute; the connection, the threads, and an option, from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument(option, dest="option", required=True)
    arguments = parser.parse_args()
    ignore_signals()
    connected = adopt(arguments.descriptor)
    prepare_to_compute(arguments.threads)
    expect_imports()
    return connected, arguments.threads, arguments.option


def run_worker(entry: str, connected: socket.socket) -> NoReturn:
    """Be a worker that ends with its connection; the last that this process does."""
    try:
        end_with(connected.fileno())
        run_entry(entry, connected)
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # whatever threads there are
    end()


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
