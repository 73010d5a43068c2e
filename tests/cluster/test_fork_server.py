"""Tests processes that are forked from a server with their modules imported: their start and end,
and the loss of the server.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import below, eventually, runs

from katz_graph.executor.launch.fork_server import Forked, ForkServer
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection

CODE = """
import os, subprocess, sys, threading, time
from pathlib import Path
{loaded}
def tell(connection):
    command = Path("/proc/self/cmdline").read_text().split("\\0")
    connection.send(("told", [os.getpid(), command, len(os.listdir("/proc/self/fd")), os.environ["OPENBLAS_NUM_THREADS"]]))
    while (asked := connection.receive()[0]) != "end":
        if asked == "child":
            connection.send(("child", subprocess.Popen(["sleep", "600"]).pid))
        else:
            names = ("CUDA_VISIBLE_DEVICES", "PYTORCH_NVML_BASED_CUDA_CHECK")
            connection.send(("gpus", [os.environ.get(name) for name in names]))
    os._exit(7)
"""
Make = Callable[..., ForkServer]


def server_of(folder: Path, loaded: str) -> ForkServer:
    """Returns a fork server whose module runs `loaded` on import."""
    (folder / "made_for_a_test.py").write_text(CODE.format(loaded=loaded))
    return ForkServer(3, "made_for_a_test", ("env", f"PYTHONPATH={folder}"))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Returns a function that makes servers, which end with the test."""
    made: list[ForkServer] = []

    def server(loaded: str = "") -> ForkServer:
        made.append(server_of(tmp_path, loaded))
        return made[-1]

    yield server
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def loads(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the file in which `server` records each load of its module."""
    return tmp_path_factory.mktemp("server") / "loads"


@pytest.fixture(scope="module")
def server(loads: Path) -> Iterator[ForkServer]:
    """Yields a server for tests without special modules."""
    with server_of(loads.parent, f"Path({str(loads)!r}).open('a').write('once ')") as server:
        yield server


EARLY = """
import os, sys
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.transport.connection import Connection
from katz_graph.ipc.child_main import adopt
def run(connected, workers):
    connection = Connection(connected)
    connection.send(("loaded", sorted({"torch", "made_for_a_test"} & set(sys.modules))))
    forked = ForkServer(3, "made_for_a_test", control=workers).fork("made_for_a_test:tell")
    told = Connection(forked.connected).receive()
    connection.send(("parents", [os.getppid(), told[1][0]]))
    connection.receive()
    os._exit(3)
if __name__ == "__main__":
    workers, connected = (int(one.partition("=")[2]) for one in sys.argv[1:])
    run(adopt(connected), adopt(workers))
"""


@pytest.mark.parametrize("threads", [False, True])
def test_an_early_process_runs_before_the_module_is_loaded_and_forks_workers(
    make: Make, tmp_path: Path, threads: bool
) -> None:
    """If the server has another thread, the process is started instead."""
    (tmp_path / "early.py").write_text(EARLY)
    if threads:
        thread = "import threading, time\nthreading.Thread(target=time.sleep, args=[9], daemon=True).start()"
        (tmp_path / "sitecustomize.py").write_text(thread)
    server = make("time.sleep(1)")
    forked = server.fork_early("early:run")
    connection = Connection(forked.connected)
    assert connection.receive()[1] == ["torch"]
    parent, worker = connection.receive()[1]
    eventually(lambda: forked.pid is not None, 5)
    assert below(parent) >= {forked.pid, worker}
    connection.send(("end", None))
    assert forked.wait(5) and forked.code == 3


def hello(forked: Forked) -> tuple[Connection, Any]:
    """Returns a forked process's connection and its description of itself."""
    connection = Connection(forked.connected)
    return connection, connection.receive()[1]


ASKS_FOR_GPUS = """
import torch
torch.cuda._is_compiled = lambda: True
torch.cuda._raw_device_count_nvml = lambda: -1
torch._C._cuda_getDeviceCount = lambda: threading.Thread(target=time.sleep, args=(600,), daemon=True).start() or 0
torch.cuda.is_available()
"""
"""Module code that queries GPUs on import, with a CUDA build and no answer from NVML: torch then
queries the CUDA runtime, which starts threads.
"""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def began_anew(command: list[str]) -> bool:
    return "katz_graph.executor.launch.worker_main" in command


def test_all_replicas_are_alike_and_hold_no_other_s_state(server: ForkServer, loads: Path) -> None:
    first, _ = hello(server.fork("made_for_a_test:tell"))
    loaded = loads.read_text()
    forked = [server.fork("made_for_a_test:tell") for _ in range(3)]
    connections, said = zip(*map(hello, forked), strict=True)
    last, (_, _, descriptors, _) = hello(server.fork("made_for_a_test:tell"))
    assert loads.read_text() == loaded  # the module is not loaded again
    assert len({pid for pid, _, _, _ in said}) == 3
    assert {descriptors} == {count for _, _, count, _ in said}
    assert {threads for _, _, _, threads in said} == {"3"}
    assert not any(began_anew(command) for _, command, _, _ in said)
    for connection in (first, *connections, last):
        connection.close()


@pytest.mark.defect(20)
def test_a_library_that_asks_for_gpus_when_it_is_loaded_leaves_workers_to_be_forked(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variables hide the GPUs during the import, and are then restored or unset."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.delenv("PYTORCH_NVML_BASED_CUDA_CHECK", raising=False)
    forked = make(ASKS_FOR_GPUS).fork("made_for_a_test:tell")
    connection, (_, command, *_) = hello(forked)
    connection.send(("gpus", None))
    assert connection.receive()[1] == ["0,1", None]
    assert not began_anew(command)
    forked.release()
    connection.close()


@pytest.mark.defect(20)
@pytest.mark.defect(37)
@pytest.mark.parametrize(
    ("loaded", "why"),
    [
        pytest.param(
            "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "has other threads (python",
            id="thread",
        ),
        pytest.param(
            "import torch\ntorch.cuda._is_in_bad_fork = lambda: os.getppid() != DRIVER",
            "has initialised CUDA",
            id="CUDA",
        ),
    ],
)
def test_unforkable_processes_start_from_scratch(
    make: Make, tmp_path: Path, loaded: str, why: str
) -> None:
    """A process forked with CUDA initialised executes a new interpreter under its id. A server with
    threads does not even fork.
    """
    forks = tmp_path / "forks"
    noted = f"os.register_at_fork(before=lambda: Path({str(forks)!r}).touch())"
    loaded = loaded.replace("DRIVER", str(os.getpid()))
    forked = make(f"{noted}\n{loaded}").fork("made_for_a_test:tell")
    connection, (pid, command, _, threads) = hello(forked)
    assert began_anew(command) and pid == forked.pid and threads == "3"
    assert why in forked.output.readline()
    assert forks.exists() is (why == "has initialised CUDA")
    connection.send(("child", None))
    child = connection.receive()[1]
    connection.send(("end", None))
    eventually(lambda: forked.is_over, 10)
    assert forked.code == 7
    forked.release()
    eventually(lambda: not runs(child), 10)  # belongs to its session
    connection.close()


def test_it_ends_on_request_and_keeps_its_number_until_released(
    server: ForkServer,
) -> None:
    forked = server.fork("made_for_a_test:tell")
    connection, (pid, *_) = hello(forked)
    connection.send(("child", None))
    child = connection.receive()[1]
    connection.send(("end", None))
    eventually(lambda: forked.is_over, 10)
    assert forked.code == 7 and forked.pid == pid
    assert Path(f"/proc/{pid}").exists() and runs(child)
    forked.release()
    eventually(lambda: not Path(f"/proc/{pid}").exists() and not runs(child), 10)
    forked.kill()  # again, without killing another process of its id
    assert forked.code == 7 and forked.is_over
    connection.close()


def test_it_is_killed_with_its_children(server: ForkServer) -> None:
    forked = server.fork("made_for_a_test:tell")
    connection, _ = hello(forked)
    connection.send(("child", None))
    child = connection.receive()[1]
    forked.kill()
    eventually(lambda: forked.is_over and not runs(child), 10)
    assert forked.code == -signal.SIGKILL
    forked.release()
    connection.close()


def test_it_is_killed_before_it_is_made(make: Make) -> None:
    server = make("time.sleep(1)")
    forked = server.fork("made_for_a_test:tell")
    assert forked.pid is None and not forked.is_over
    forked.kill()
    assert forked.is_over and forked.code is None
    with pytest.raises(Closed):
        Connection(forked.connected).receive()
    connection, _ = hello(server.fork("made_for_a_test:tell"))  # the next process is not killed
    connection.close()


def test_when_the_server_is_lost_its_processes_go_on_and_another_takes_its_place(
    server: ForkServer,
) -> None:
    first = server.fork("made_for_a_test:tell")
    connection, (pid, *_) = hello(first)
    lost = parent(pid)
    os.kill(lost, signal.SIGKILL)
    eventually(lambda: not runs(lost), 10)
    connection.send(("child", None))
    assert runs(connection.receive()[1])
    eventually(lambda: first.is_over, 10)
    assert first.code is None  # unknown exit code
    second, (other, *_) = hello(server.fork("made_for_a_test:tell"))
    assert other != pid and parent(other) != lost
    connection.send(("end", None))
    eventually(lambda: not runs(pid), 10)
    second.close()


def test_a_failed_module_load_is_reported_by_its_reader(make: Make) -> None:
    forked = make("raise ImportError('libcuda.so.1: cannot open shared object file')").fork(
        "made_for_a_test:tell"
    )
    eventually(lambda: forked.is_over, 30)
    assert forked.code == 1
    assert (
        forked.output.read().splitlines()[-1]
        == "ImportError: libcuda.so.1: cannot open shared object file"
    )
    forked.release()
    forked.connected.close()


def test_it_ends_with_its_driver_while_it_loads_and_afterwards(make: Make) -> None:
    for loaded in ("time.sleep(600)", ""):
        before = below(os.getpid())
        server = make(loaded)
        server.begin()
        time.sleep(0.3)
        (pid,) = below(os.getpid()) - before
        assert runs(pid)
        server._control.close()  # as if the driver were killed
        eventually(lambda pid=pid: not runs(pid), 10)  # type: ignore[misc]


def test_an_ended_one_is_started_again() -> None:
    before = below(os.getpid())
    with ForkServer(module="json") as server:
        assert server.begin() == server.begin()
        (first,) = below(os.getpid()) - before
        os.kill(first, signal.SIGKILL)
        eventually(lambda: not runs(first), 5)
        server.begin()
        (second,) = below(os.getpid()) - before
        assert second != first and runs(second)
