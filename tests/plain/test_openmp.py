"""OpenMP's threads wait as by default on an idle machine, sleep while other processes are busy, or
wait as the user has set.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from katz_graph.core.devices import processors
from katz_graph.executor.turns.openmp import teams_beyond
from katz_graph.settings.environment import WAITING

SPIN_COUNT = WAITING["GOMP_SPINCOUNT"]
COMMAND = """
import contextlib, sys
from katz_graph.cli.main import main
sys.argv = ["katz", "bench"]
with contextlib.suppress(SystemExit):
    main()
import torch
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, SPIN_COUNT),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, "30000000000"),
    ],
    ids=str,
)
def test_commands_set_thread_waiting_before_torch_unless_already_set(
    said: dict[str, str], expected: str
) -> None:
    environment = (
        {name: value for name, value in os.environ.items() if name not in WAITING}
        | said
        | {"OMP_DISPLAY_ENV": "VERBOSE"}
    )
    done = subprocess.run(
        [sys.executable, "-c", COMMAND],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert [
        line.split("'")[1] for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line
    ] == [expected], done.stderr


TWO_POOLS = """
import os, subprocess, sys, threading, time
from katz_graph.settings.environment import prepare_to_compute
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
prepare_to_compute()
import torch
from katz_graph.executor.turns.loop import ServiceTask, DeviceThread

layers = torch.nn.Sequential(*[torch.nn.Conv2d(64, 64, 3, padding=1) for _ in range(6)])
picture = torch.rand(2, 64, 16, 16)

def compute():
    for _ in range(20):
        result = layers(picture)
    return result

def computed():
    return worker.submit(ServiceTask(compute)).result()

def held():
    return sum(thread.name == "katz-idle-team" for thread in threading.enumerate())

worker = DeviceThread("computes", 2)
expected, same = computed(), True
others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(3)]
try:
    until = time.monotonic() + float(sys.argv[1])
    while not (teams := held()) and time.monotonic() < until:
        same = same and torch.equal(computed(), expected)
    same = same and torch.equal(computed(), expected)  # while they are held
finally:
    for other in others:
        other.kill()
        other.wait()
worker.close()
print(teams, held(), same)
"""


@pytest.mark.skipif(processors() < 2, reason="threads have to run beside each other")
@pytest.mark.parametrize(
    ("said", "patience", "teams"), [({}, 60, 1), ({"GOMP_SPINCOUNT": "299999"}, 3, 0)], ids=str
)
def test_two_threads_hold_an_idle_team_under_load_unless_set_otherwise(
    said: dict[str, str], patience: int, teams: int
) -> None:
    """`katz bench overhead` checks the effect on runs."""
    environment = {name: value for name, value in os.environ.items() if name not in WAITING} | said
    done = subprocess.run(
        [sys.executable, "-c", TWO_POOLS, str(patience)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
    )
    assert done.stdout == f"{teams} 0 True\n", done


def test_idle_teams_are_threads_and_change_nothing_for_others() -> None:
    code = """
import os, threading, torch
from katz_graph.executor.turns.openmp import idle_teams, teams_beyond

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(2)
torch.zeros(2 * 32768).add_(1)
torch.set_num_threads(1)
before, said = threads(), []
with idle_teams(2, 3):
    while threads() < before + 2 * 3:
        pass
    asking = threading.Thread(target=lambda: said.append(torch.get_num_threads()))
    asking.start()
    asking.join()
while threads() > before:
    pass
print(said, torch.get_num_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[1] 1\n", done.stderr


@pytest.mark.parametrize(
    ("available", "threads", "teams"),
    [(2, 2, 1), (16, 16, 1), (16, 4, 5), (16, 1, 0), (2, 3, 0), (1, 1, 0)],
)
def test_idle_teams_make_for_more_threads_than_processors(
    available: int, threads: int, teams: int
) -> None:
    assert teams_beyond(available, threads) == teams
    assert not teams or 1 + (threads - 1) * (1 + teams) > available
