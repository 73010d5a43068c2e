"""Workers end with their driver, in whatever way and phase it ends. Uses a separate driver process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import below, eventually, runs

from katz_graph.executor.cluster.worker_handle import WorkerPatience

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))


DRIVER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets its background jobs ignore it
sys.path.insert(0, {here!r})
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.cluster.supervisor import Supervisor
ignore = lambda *arguments: None
server = ForkServer(module="fake_worker")
supervisor = Supervisor(dict.fromkeys("ab", Spawn(server, "fake_worker:serve")), ignore, ignore, ignore, ignore, spares=True)
print("starting", flush=True)
try:
    connections = supervisor.start()
    connections["a"].send(("compute", 600.0))
    connections["b"].send(("child", None))
    time.sleep(0.5)
    print("working", flush=True)
    time.sleep(600)
finally:
    {finally_}
"""


def start_driver(
    phase: str, finally_: str = "supervisor.close()"
) -> tuple[subprocess.Popen[str], Callable[[], set[int]]]:
    """Starts a driver process and waits for the phase. Also returns a function that lists which of
    the driver, the workers and their children are running.
    """
    script = DRIVER.format(here=str(HERE), finally_=finally_)
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.strip() == phase:
            break
    known = set[int]()

    def are_there() -> bool:
        known.update(below(driver.pid))  # misses processes while another one ends
        return len(known) >= 2

    try:
        eventually(are_there, 20)
    except AssertionError:
        driver.kill()
        raise AssertionError(driver.communicate()) from None
    return driver, lambda: {pid for pid in known if runs(pid)}


def test_nothing_outlives_a_driver_that_is_killed_while_it_starts() -> None:
    driver, running = start_driver("starting")
    with driver:
        end(driver, running)


def test_nothing_outlives_a_driver_that_is_killed_at_work() -> None:
    """A driver that was suspended for a while (Ctrl-Z, a closed lid) does not count its workers as
    frozen.
    """
    driver, running = start_driver("working")
    with driver:
        before = running()
        os.kill(driver.pid, signal.SIGSTOP)
        time.sleep(4.0)
        os.kill(driver.pid, signal.SIGCONT)
        time.sleep(1.0)
        assert running() == before
        end(driver, running)


def end(driver: subprocess.Popen[str], running: Callable[[], set[int]]) -> None:
    driver.kill()
    driver.wait()
    seconds = eventually(lambda: not running(), 5)  # they would compute for 600 s
    print(f"all workers had ended {seconds:.3f} s after SIGKILL of the driver")


@pytest.mark.parametrize(
    ("phase", "finally_"),
    [("starting", "supervisor.close()"), ("starting", "pass"), ("working", "pass")],
)
def test_nothing_outlives_a_driver_that_is_interrupted(phase: str, finally_: str) -> None:
    """Ctrl-C reaches the driver's process group. If the driver does not call `close`, its exit
    handler ends the workers in bounded time.
    """
    created = time.monotonic()
    driver, running = start_driver(phase, finally_)
    with driver:
        began = time.monotonic()
        os.killpg(driver.pid, signal.SIGINT)
        _, error = driver.communicate(timeout=20)
        print(f"{phase}: the driver had ended {time.monotonic() - began:.2f} s after Ctrl-C")
        assert "KeyboardInterrupt" in error
        assert not running()
        assert time.monotonic() - began < 2 * WorkerPatience().stop + (began - created)
