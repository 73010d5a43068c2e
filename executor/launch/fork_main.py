"""Runs a fork server: loads the libraries of workers, then forks a worker for each request of the
driver. Forks processes that need only torch before it loads the other libraries.

Only a process with a single thread and without initialised CUDA can fork. GPUs are hidden while
libraries load, because some query GPUs by torch, which may initialise CUDA's runtime. If a library
still starts threads or initialises CUDA, workers start as `worker_main`, load by themselves, and
print the reason.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import select
import selectors
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import astuple
from pathlib import Path
from typing import NoReturn

from katz_graph.core.phases import Phase, Phases, process_start
from katz_graph.executor.launch.fork_server import EARLY, MAX_MESSAGE_BYTES
from katz_graph.executor.launch.worker_main import begin, run_worker
from katz_graph.host.deferred_imports import import_deferring
from katz_graph.host.environment import environment
from katz_graph.host.garbage import imports_are_done
from katz_graph.ipc.child import PYTHON, kill_session
from katz_graph.ipc.child_main import end_with
from katz_graph.settings.environment import prepare_to_compute

WORKER = "katz_graph.executor.launch.worker_main"
CONNECTION = "katz_graph.executor.transport.connection"
# the second makes torch count GPUs by the first, not by CUDA's runtime
NO_GPUS = {"CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
THREAD_CHECKS, THREAD_CHECK_INTERVAL_S = 10, 0.005  # at most 10 checks, 5 ms apart
THREADS = Path("/proc/self/task")


def main() -> None:
    phases = Phases("fork server", process_start())
    control, threads, module = begin()
    phases.end("start Python")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # otherwise it starts its threads when it is loaded
    forks = ForkLoop(control, threads, phases.done)
    with importing(control):
        importlib.import_module(CONNECTION)
        phases.end("load torch")
    gc.freeze()  # so that collections do not copy memory that early processes share
    forks.fork_early()
    with importing(control):
        import_deferring(module)
        phases.end("load model libraries")
    imports_are_done()
    forks.serve()


@contextmanager
def importing(control: socket.socket) -> Iterator[None]:
    """Hides GPUs, and ends this process if the driver ends meanwhile. Ignores errors, because an
    import that fails here fails in the workers too, which report it.
    """
    loaded, finish = socket.socketpair()
    watching = end_with(control.fileno(), unless=loaded.fileno())
    with hidden_gpus(), suppress(BaseException):
        yield
    finish.close()
    watching.join()  # fork needs a single thread
    loaded.close()


def hidden_gpus() -> AbstractContextManager[None]:
    """Hides GPUs from torch, so that it reports none without asking NVML or CUDA's runtime, which
    would start threads or make this process unfit to fork. Torch does not cache the answer.
    """
    return environment(NO_GPUS)


class ForkLoop:
    """Forks workers until the last connection to `control` ends. Reaps a worker only after its
    driver has released it, because reaping allows its PID to be reused.
    """

    def __init__(self, control: socket.socket, threads: int, phases: Sequence[Phase]) -> None:
        self._control, self._threads, self._phases = control, threads, phases
        self._awaited = selectors.DefaultSelector()
        self._await(control.fileno(), self._fork)

    def serve(self) -> None:
        while True:
            # one event at a time: its handler may unregister others
            key, _ = self._awaited.select()[0]
            key.data()

    def fork_early(self) -> None:
        """Forks the processes that need only torch and are requested already."""
        with suppress(BlockingIOError):
            peeking = socket.MSG_PEEK | socket.MSG_DONTWAIT
            while self._control.recv(MAX_MESSAGE_BYTES, peeking).startswith(EARLY):
                self._fork()

    def _fork(self) -> None:
        asked, descriptors, _, _ = socket.recv_fds(
            self._control, MAX_MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC
        )
        if not asked:
            os._exit(0)
        connected, output, life, *control = descriptors
        entry = asked.removeprefix(EARLY).decode()
        pid = None if _dropped(life) else self._forked(entry, connected, output, life, control)
        for descriptor in (connected, output, *control):
            os.close(descriptor)
        if pid is None:
            os.close(life)
            return
        _report(life, json.dumps([pid, [astuple(phase) for phase in self._phases]]))
        running = os.pidfd_open(pid)
        self._await(running, lambda: self._has_ended(running, life))
        self._await(life, lambda: self._release(pid, running, life))

    def _forked(
        self, entry: str, connected: int, output: int, life: int, control: Sequence[int]
    ) -> int | None:
        """Forks a process, or starts one that loads by itself. Returns its PID, None on failure."""
        try:
            if others := _other_threads():
                _explain(output, f"has other threads ({', '.join(others)})")
                return self._started(entry, connected, output, control)
            pid = os.fork()
        except OSError as error:
            os.write(output, f"a process could not be forked: {error}\n".encode())
            return None
        if pid == 0:
            self._become(entry, connected, output, life, control)
        return pid

    def _started(self, entry: str, connected: int, output: int, control: Sequence[int]) -> int:
        """Starts a process without forking, because locks of other threads would stay locked in a
        fork.
        """
        return os.posix_spawn(
            sys.executable,
            self._command(entry, connected, control),
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)],
            setsid=True,
        )

    def _command(self, entry: str, connected: int, control: Sequence[int]) -> list[str]:
        """Returns the command of a process that loads by itself; it inherits its connections."""
        for descriptor in (connected, *control):
            os.set_inheritable(descriptor, True)
        if not control:
            return [*PYTHON, "-m", WORKER, str(self._threads), entry, str(connected)]
        options = (f"--workers={control[0]}", f"--descriptor={connected}")
        return [*PYTHON, "-m", entry.partition(":")[0], *options]

    def _has_ended(self, running: int, life: int) -> None:
        ended = os.waitid(os.P_PIDFD, running, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        self._awaited.unregister(running)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        _report(life, str(status))

    def _release(self, pid: int, running: int, life: int) -> None:
        """Kills the remaining processes of a worker's session when the driver has disconnected or
        released the worker. Reaps the worker now, or later if it has not ended yet.
        """
        kill_session(pid)
        self._awaited.unregister(life)
        os.close(life)
        if running in self._awaited.get_map():
            self._awaited.modify(running, selectors.EVENT_READ, lambda: self._collect(pid, running))
        else:
            self._collect(pid, running)

    def _collect(self, pid: int, running: int) -> None:
        """Reaps an ended process."""
        os.waitid(os.P_PID, pid, os.WEXITED)
        with suppress(KeyError):
            self._awaited.unregister(running)
        os.close(running)

    def _become(
        self, entry: str, connected: int, output: int, life: int, control: Sequence[int]
    ) -> NoReturn:
        """Turns this forked process into a worker, or, with `control`, into a process that forks
        workers.
        """
        try:
            os.setsid()
            for number in (1, 2):
                os.dup2(output, number)
            for key in list(self._awaited.get_map().values()):
                if key.fd != self._control.fileno():
                    os.close(key.fd)
            self._awaited.close()
            self._control.close()
            os.close(output)
            os.close(life)
            prepare_to_compute(self._threads)
            if _has_initialised_cuda():
                _explain(sys.stderr.fileno(), "has initialised CUDA")
                os.execv(sys.executable, self._command(entry, connected, control))
            connections = [socket.socket(fileno=one) for one in (connected, *control)]
            if control:
                pkgutil.resolve_name(entry)(*connections)
            else:
                run_worker(entry, *connections)
        except BaseException:
            traceback.print_exc()
        os._exit(1)  # regardless of other threads

    def _await(self, descriptor: int, act: Callable[[], None]) -> None:
        self._awaited.register(descriptor, selectors.EVENT_READ, act)


def _dropped(life: int) -> bool:
    """Returns whether the driver has dropped its request."""
    asked = select.poll()
    asked.register(life, select.POLLRDHUP)
    return bool(asked.poll(0))


def _other_threads() -> list[str]:
    """Returns the names of this process's other threads, including native threads. Waits briefly
    for threads that are ending.
    """
    for _ in range(THREAD_CHECKS):
        others = [thread for thread in THREADS.iterdir() if thread.name != str(os.getpid())]
        if not others:
            return []
        time.sleep(THREAD_CHECK_INTERVAL_S)
    return [_name(thread) for thread in others]


def _name(thread: Path) -> str:
    with suppress(OSError):  # the thread has just ended
        return (thread / "comm").read_text().strip()
    return "ended"


def _has_initialised_cuda() -> bool:
    """Returns whether CUDA is unusable, because it was initialised before this process forked."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda._is_in_bad_fork())


def _explain(output: int, why: str) -> None:
    """Writes to a worker's output why the worker was not forked."""
    os.write(
        output,
        "this worker is not forked, so loading its libraries takes seconds: the process to fork "
        f"{why}\n".encode(),
    )


def _report(life: int, message: str) -> None:
    """Sends the driver a message: first the PID with the phases of this process, later the exit
    status.
    """
    with suppress(OSError):  # released by the driver
        os.write(life, message.encode())


if __name__ == "__main__":
    main()
