"""Runs a worker process: ends it with the driver, sets the threads, imports heavy libraries, then
serves.

Imports nothing heavy itself, so that the process ends with its driver even while torch is being
imported.
"""

from __future__ import annotations

import os
import pkgutil
import socket
import sys
import traceback
from typing import NoReturn

from katz_graph.host.deferred_imports import import_deferring
from katz_graph.host.garbage import expect_imports, imports_are_done
from katz_graph.ipc.child_main import adopt, end, end_with, ignore_signals
from katz_graph.settings.environment import prepare_to_compute

# seconds between thread switches, less than the default of 5 ms so that the receiving thread
# interrupts the computing thread sooner
SWITCH_INTERVAL_S = 5e-4


def main() -> None:
    connected, _, entry = begin()
    run_worker(entry, connected)


def begin() -> tuple[socket.socket, int, str]:
    """Prepares to import and compute. Returns the connection, the number of threads and the import
    target.
    """
    threads, imported, descriptor = sys.argv[1:]
    ignore_signals()
    prepare_to_compute(int(threads))
    expect_imports()
    return adopt(int(descriptor)), int(threads), imported


def run_worker(entry: str, connected: socket.socket) -> NoReturn:
    """Calls `entry` (module:function) with the connection. This process ends when `entry` returns
    or the connection ends.
    """
    try:
        end_with(connected.fileno())
        import_deferring(entry.partition(":")[0])
        serve = pkgutil.resolve_name(entry)
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        imports_are_done()
        from katz_graph.executor.transport.connection import Connection  # loads torch

        serve(Connection(connected))
    except BaseException:
        traceback.print_exc()
        os._exit(1)  # regardless of other threads
    end()


if __name__ == "__main__":
    main()
