"""Each launcher starts a worker that answers on its connection, in the requested environment."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import fake_worker
import pytest
import slow_cuda
import torch
from diffusers.utils import torch_utils
from processes import below, eventually, runs

from katz_graph.core.devices import parse_devices
from katz_graph.executor.cluster.worker_handle import PATIENCE
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch import fork_server as launching
from katz_graph.executor.launch.base import hello
from katz_graph.executor.launch.early_start import EarlyStart
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn, WorkerProcess
from katz_graph.executor.launch.work import find_gpus_again
from katz_graph.executor.measure.device import METHOD
from katz_graph.executor.measure.store import CostStore, Rates
from katz_graph.executor.messages import Hello
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ipc.heartbeat import Ping, Pong
from katz_graph.settings.environment import WAITING
from katz_graph.testing.worker_threads import WorkerThreads

HERE = Path(__file__).parent


def test_a_process_has_its_threads_its_prefix_and_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    (tmp_path / "random.py").write_text(
        "raise SystemExit('the current folder is no place to import from')"
    )
    monkeypatch.chdir(tmp_path)
    printed: list[str] = []
    with ForkServer(3, "fake_worker", ("env", "SPACE=blue")) as server:
        live_and_end(Spawn(server, "fake_worker:serve", printed.append).launch("a"), printed)


def live_and_end(process: WorkerProcess, printed: list[str]) -> None:
    assert process.connection.receive() == replace(hello(), pid=process.pid)
    assert process.pid is not None and os.getsid(process.pid) == process.pid
    process.connection.send(("environment", ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "SPACE"]))
    expected_environment = {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "SPACE": "blue"}
    assert process.connection.receive() == ("environment", expected_environment)
    assert process.is_alive() and process.last_words() == ""
    process.connection.send(("exit", None))
    with pytest.raises(Closed):
        process.connection.receive()
    assert process.wait(5) and not process.is_alive() and not runs(process.pid)
    assert printed == ["the disk is on fire\n"]
    assert process.last_words() == "exit status 3; it last printed: the disk is on fire"
    process.kill()  # again, without killing another process of its id
    process.connection.close()


def test_a_process_that_cannot_be_started_leaves_no_descriptor() -> None:
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        Spawn(ForkServer(prefix=("/no/such/program",))).launch("a")
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_the_real_worker_starts_and_its_threads_wait_as_ours_do(
    fork_server: ForkServer, fork_server_output: list[str]
) -> None:
    began = time.monotonic()
    process = Spawn(fork_server).launch("a")
    said = process.connection.receive()
    assert isinstance(said, Hello)
    assert said == replace(hello(said.phases), pid=process.pid)
    assert [phase.name for phase in said.phases] == ["load node types"]
    assert [phase.name for phase in process.phases] == [
        "start Python",
        "load torch",
        "load model libraries",
    ]
    seconds = time.monotonic() - began
    process.connection.send(Ping())
    assert process.connection.receive() == Pong()
    process.connection.close()
    eventually(lambda: not process.is_alive(), 2)
    assert process.wait(1)
    expected_environment = [
        line.split("'")[1] for line in fork_server_output if "GOMP_SPINCOUNT" in line
    ]
    assert set(expected_environment) == {WAITING["GOMP_SPINCOUNT"]}
    print(f"a process of the real worker was ready after {seconds:.2f} s")


@pytest.mark.defect(20)
def test_a_worker_inherits_the_descriptions_of_the_built_in_nodes(fork_server: ForkServer) -> None:
    process = Spawn(fork_server, "fake_worker:serve").launch("a")
    assert process.connection.receive() == replace(hello(), pid=process.pid)
    process.connection.send(("described", None))
    assert process.connection.receive() == ("described", True)
    process.connection.close()


@pytest.mark.defect(20)
def test_gpus_that_were_hidden_from_libraries_are_found_in_a_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert torch_utils.get_device() == "cpu"
    monkeypatch.setattr(torch_utils, "torch_device", torch_utils.torch_device)
    with monkeypatch.context() as patched:
        patched.setattr(torch.accelerator, "is_available", lambda: True)
        patched.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
        find_gpus_again()
        assert torch_utils.get_device() == torch_utils.torch_device == "cuda"
    find_gpus_again()
    assert torch_utils.get_device() == "cpu"


def test_a_thread_answers_and_ends() -> None:
    thread = WorkerThreads(fake_worker.serve).launch("a")
    assert thread.connection.receive() == hello()
    thread.connection.send(("echo", (1, 2)))
    assert thread.connection.receive() == ("echo", (1, 2))
    thread.kill()
    assert thread.wait(2) and not thread.is_alive()
    with pytest.raises(Closed):
        thread.connection.receive()
    thread.connection.close()


def test_a_thread_reports_its_fatal_error() -> None:
    thread = WorkerThreads(fake_worker.broken).launch("a")
    assert thread.wait(2)
    assert thread.last_words().startswith("ImportError: libcuda")
    thread.connection.close()


def test_worker_modules_are_loaded_ahead_on_this_host() -> None:
    before = below(os.getpid())
    with EarlyStart(parse_devices("ray*2"), 1):
        assert below(os.getpid()) == before
    with EarlyStart(parse_devices("cpu*3"), 1):
        assert len(new_processes := below(os.getpid()) - before) == 1
    assert not any(map(runs, new_processes))


def test_a_gpu_that_takes_long_to_begin_is_not_taken_for_a_frozen_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork_server: ForkServer
) -> None:
    monkeypatch.setattr(launching, "ENTRY_ON_GPU", "slow_cuda:work_on_gpu")
    assert PATIENCE.frozen < slow_cuda.SECONDS
    CostStore(tmp_path).keep_rates(
        f"{METHOD}/{slow_cuda.NAME}/float32/torch {torch.__version__}", Rates(1e12, 1e11, 1e-5)
    )
    launcher = Spawn(fork_server, launching.entry_for("cuda:0"))
    with DeviceEngine(
        [WorkerConfig("cuda:0", "cuda:0")],
        cache=tmp_path,
        patience=replace(PATIENCE, deaths=1),
        launchers={"cuda:0": launcher},
    ) as engine:
        # of 8 GiB, minus the reserve for computing
        assert engine.cluster.call("cuda:0", "identity").value["memory_bytes"] == 7 << 30
