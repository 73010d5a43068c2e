"""`katz run` on several worker processes ends with its reason in one line and leaves no process,
socket or shared memory.
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from processes import as_before, below, eventually, runs

from katz_graph.core.errors import RunError
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.fork_server import ENTRY, ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.worker.config import WorkerConfig

WORKFLOW = Path(__file__).parents[2] / "workflows" / "controlnet_lora.json"
CODE = (
    "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\nfrom "
    "katz_graph.cli.main import main\nmain()"
)


@dataclass
class Run:
    """Runs `katz run` in a separate terminal, where it draws its progress."""

    process: subprocess.Popen[bytes]
    terminal: int
    cache: Path
    output: bytes = b""

    def read_until(self, words: bytes) -> None:
        while words not in self.output:
            self.output += os.read(self.terminal, 1 << 16)

    def reach(self, phase: str) -> None:
        if phase == "importing":
            self.read_until(b"starting 2 workers")
        elif phase == "loading":
            # the measured costs are written; planning and loading follow
            eventually(lambda: any(self.cache.iterdir()), 60)
        else:
            self.read_until(b"it/s")

    def rest(self) -> str:
        """Waits for the end and returns the whole output."""
        while True:
            try:
                if not (more := os.read(self.terminal, 1 << 16)):
                    break
            except OSError:  # on Linux: no process has the other end open
                break
            self.output += more
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.output.decode())  # without colour codes


@pytest.fixture
def cache(request: pytest.FixtureRequest, tmp_path: Path, costs: Path) -> Path:
    """Returns the shared cost cache, or an empty one for tests that measure."""
    if getattr(request, "param", None) is None:
        return costs
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Iterator[Run]:
    terminal, other_side = pty.openpty()
    shared = set(Path("/dev/shm").iterdir())
    arguments = [
        "run",
        str(WORKFLOW),
        "--devices",
        "cpu*2",
        "--link",
        "10,0.1",
        "--set",
        "KSampler.steps=400",
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments],
        env={**os.environ, "KATZ_CACHE": str(cache), "TERM": "xterm", "COLUMNS": "200"},
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=other_side,
        process_group=0,
    )
    os.close(other_side)
    with process:
        yield Run(process, terminal, cache)
        process.kill()
    os.close(terminal)
    assert set(Path("/dev/shm").iterdir()) <= shared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "cache"),
    [("importing", None), ("loading", "own"), ("sampling", None)],
    indirect=["cache"],
)
def test_ctrl_c_is_one_line_and_leaves_nothing(run: Run, phase: str) -> None:
    run.reach(phase)
    workers = below(run.process.pid)
    began = time.monotonic()
    os.killpg(run.process.pid, signal.SIGINT)
    output = run.rest()
    assert run.process.wait(20) == 130, output
    print(f"{phase}: ended {time.monotonic() - began:.2f} s after Ctrl-C")
    assert [line for line in output.splitlines() if "error" in line.lower()] == ["error: cancelled"]
    assert "Traceback" not in output
    assert len(workers) >= 2 or phase == "importing"
    assert not any(map(runs, workers))


@pytest.mark.slow
def test_nothing_outlives_a_run_that_is_killed(run: Run) -> None:
    run.reach("sampling")
    workers = below(run.process.pid)
    assert len(workers) >= 2
    run.process.kill()
    seconds = eventually(lambda: not any(map(runs, workers)), 5)
    print(f"all had ended {seconds:.3f} s after SIGKILL")


@pytest.mark.slow
def test_an_error_in_the_driver_leaves_nothing(costs: Path, fork_server: ForkServer) -> None:
    before, workers = below(os.getpid()), set[int]()
    with pytest.raises(ZeroDivisionError), engine(["cpu:0", "cpu:1"], costs, fork_server):
        workers = below(os.getpid()) - before
        assert len(workers) >= 2
        raise ZeroDivisionError
    assert not any(map(runs, workers))


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["device", "entry"])
def test_a_worker_that_cannot_start_is_reported_in_one_line(
    costs: Path, broken: str, fork_server: ForkServer
) -> None:
    before = below(os.getpid())
    names = ["cpu:0", "cuda:77" if broken == "device" else "cpu:1"]
    with pytest.raises(RunError) as error:
        engine(names, costs, fork_server, "no_such_module:serve" if broken == "entry" else ENTRY)
    print(error.value)
    assert f"device {names[1]}" in str(error.value) and "\n" not in str(error.value)
    as_before(before)


def engine(names: list[str], cache: Path, server: ForkServer, last: str = ENTRY) -> DeviceEngine:
    """Opens an engine on workers of this host; the last has the entry point `last`."""
    launchers = {
        name: Spawn(server, last if name == names[-1] else ENTRY, echo=lambda line: None)
        for name in names
    }
    return DeviceEngine(
        [WorkerConfig(name, name.split(":")[0] if "cpu" in name else name) for name in names],
        cache=cache,
        launchers=launchers,
    )
