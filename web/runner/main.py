"""Runs the runner's main program: sets the thread count, starts loading in workers, serves, and
exits with the server.

Imports nothing heavy itself, because it must exit with the server even while torch and packs are
being imported.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import queue
import socket
import threading
import time
import traceback
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from katz_graph.core.devices import threads_for
from katz_graph.core.errors import InputError, KatzError, RunError
from katz_graph.core.phases import Phases, process_start
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.host.garbage import expect_imports
from katz_graph.ipc.child_main import adopt, end, ignore_signals
from katz_graph.ipc.heartbeat import Ping, Pong, Stop
from katz_graph.settings.environment import pin_cache, prepare_to_compute
from katz_graph.web.options import RUNNER_LOCK, RunnerStart
from katz_graph.web.runner.uncommitted_files import UncommittedFiles
from katz_graph.web.runner_client.messages import Failed, Keep, Prepare, Start
from katz_graph.web.runner_client.wire import Numbered, ThreadedEnd

# imported by a standby process; the second module loads torch
IMPORTED = ("katz_graph.web.runner.service", "katz_graph.web.runner.devices")
# seconds without a switch between Python threads after which the process exits: native pack code
# holds the interpreter
WATCHDOG_S = 60.0
WATCHDOG_REARM_S = 5.0
LOCK_PATIENCE = 20.0
EXIT_TIMEOUT_S = 5.0  # seconds for an orderly exit after the server has disconnected


def main() -> None:
    phases = Phases("runner", process_start())
    parser = argparse.ArgumentParser()
    parser.add_argument("--descriptor", type=int, required=True)
    parser.add_argument("--workers", type=int)
    arguments = parser.parse_args()
    ignore_signals()
    phases.end("start Python")
    workers = None if arguments.workers is None else adopt(arguments.workers)
    run(adopt(arguments.descriptor), workers, phases)


def run_forked(connected: socket.socket, workers: socket.socket) -> None:
    """Runs a runner in a process that a fork server has forked."""
    run(connected, workers, Phases("runner", process_start()))


def run(connected: socket.socket, workers: socket.socket | None, phases: Phases) -> None:
    """Serves the server at the other end of a socket. `workers`: a connection to a fork server."""
    wire = ThreadedEnd(connected)
    unkept = UncommittedFiles()
    messages: queue.SimpleQueue[Numbered | None] = queue.SimpleQueue()
    serving = threading.Event()
    threading.Thread(
        target=_receive, args=(wire, messages, unkept, serving), name="katz-wire", daemon=True
    ).start()
    threading.Thread(target=_pulse, name="katz-pulse", daemon=True).start()
    try:
        first = messages.get()
        if first is not None and isinstance(first.message, Prepare):
            _prepare(first.message.start)
            for module in IMPORTED:
                importlib.import_module(module)
            first = messages.get()
        if first is None or not isinstance(first.message, Start):  # the server has exited
            return
        start = first.message.start
        with _only(start.options.data):
            _serve(start, wire, messages, unkept, serving, workers, phases)
    except BaseException as error:
        if not isinstance(error, KatzError):
            traceback.print_exc()
        message = str(error) if isinstance(error, KatzError) else f"{type(error).__name__}: {error}"
        devices = list(error.devices) if isinstance(error, KatzError) else []
        wire.send(Failed(message, isinstance(error, InputError), devices))
    finally:
        end()


def _serve(
    start: RunnerStart,
    wire: ThreadedEnd,
    messages: queue.SimpleQueue[Numbered | None],
    unkept: UncommittedFiles,
    serving: threading.Event,
    workers: socket.socket | None,
    phases: Phases,
) -> None:
    asked, threads = start.options.device_list(), _prepare(start)
    try:
        started_server = None if workers is None else ForkServer(threads, control=workers)
        with EarlyStart(asked.without(start.excluded), threads, started_server) as early_start:
            from katz_graph.web.runner.service import RunnerService

            phases.end("load the runner")
            with RunnerService(start, wire, unkept, messages.put, early_start, phases) as service:
                while (arrived := messages.get()) is None or not isinstance(arrived.message, Stop):
                    service.obey(arrived)
                    if service.is_ready:
                        serving.set()
    finally:  # no job writes now
        unkept.delete()


def _prepare(start: RunnerStart) -> int:
    """Configures this process before its imports; returns the number of threads per device."""
    threads = threads_for(start.options.device_list(), start.options.threads)
    pin_cache()
    prepare_to_compute(threads)
    expect_imports()
    return threads


def _only(folder: Path) -> AbstractContextManager[object]:
    """Acquires a lock for the life of this process: a restarted server waits until an earlier
    server's runner has cleaned up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(folder / RUNNER_LOCK).acquire(timeout=LOCK_PATIENCE)
    except Timeout:
        raise RunError(f"{folder}: the runner of another server uses this data folder") from None


def _receive(
    wire: ThreadedEnd,
    messages: queue.SimpleQueue[Numbered | None],
    unkept: UncommittedFiles,
    serving: threading.Event,
) -> None:
    """Answers pings and queues the other messages until the server disconnects. Then requests a
    stop and forces the exit after EXIT_TIMEOUT_S, or immediately if serving has not started.
    """
    for arrived in wire.receive():
        match arrived.message:
            case Ping():
                wire.send(Pong())
            case Keep(job):
                unkept.keep(job)
            case _:
                messages.put(arrived)
    messages.put(Numbered(0, Stop()))
    if serving.is_set():
        time.sleep(EXIT_TIMEOUT_S)
    unkept.delete()
    end()


def _pulse() -> None:
    """Re-arms a watchdog that runs outside the interpreter: it ends the process when no Python
    thread can run.
    """
    while True:
        faulthandler.dump_traceback_later(WATCHDOG_S, exit=True)
        time.sleep(WATCHDOG_REARM_S)


if __name__ == "__main__":
    main()
