"""Workers claim exclusive processors: none is given twice, and a claim leaves no trace."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from katz_graph.executor.turns import affinity as processors
from katz_graph.executor.turns.affinity import RELEASE_S, Awake, claim

WAIT = """
import subprocess, sys, time
from resource import RUSAGE_SELF, getrusage
from katz_graph.executor.turns.affinity import stay_on
from katz_graph.executor.turns.loop import DeviceThread

class Held:
    weight_set, original_set, ready, remaining, rows = None, None, False, 0.0, 0

    def close(self):
        pass

stay_on([int(sys.argv[1])])
other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
time.sleep(0.3)
worker = DeviceThread("waits", 1, awake=1.0)
before = getrusage(RUSAGE_SELF).ru_nivcsw
job = worker.submit(Held())
time.sleep(1.0)
print(getrusage(RUSAGE_SELF).ru_nivcsw - before)
job.cancel()
worker.close()
other.kill()
other.wait()
"""

HOLD = """
import sys
from katz_graph.executor.turns import affinity as processors
processors._available, processors._has_quota = lambda: [90010], lambda: False
processors.NAME, processors.OUTERMOST = sys.argv[1:]
claimed = processors.claim(1)
print(*claimed.processors, flush=True)
input()
"""


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulates a host without containers, quotas and other claims."""
    (tmp_path / "cgroup").write_text("")
    monkeypatch.setattr(processors, "NAME", str(uuid.uuid4()))
    monkeypatch.setattr(processors, "OUTERMOST", str(processors.NAMESPACE.readlink()))
    monkeypatch.setattr(processors, "GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(processors, "GROUPS", tmp_path)


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulates the topology of four processors, two of each of two cores, with numbers that no
    machine has.
    """
    monkeypatch.setattr(processors, "_available", lambda: [90000, 90001, 90002, 90003])
    monkeypatch.setattr(processors, "TOPOLOGY", tmp_path)
    for number in range(4):
        folder = tmp_path / f"cpu{90000 + number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(
            "90000-90001\n" if number < 2 else "90002-90003\n"
        )
    return tmp_path


def test_cores_come_before_their_second_threads_and_are_given_once(four: Path) -> None:
    with claim(2) as first, claim(1) as second:
        assert (first.processors, second.processors) == ([90000, 90002], [90001])
        assert claim(2).processors == ()  # one is left, unclaimed
        with claim(1) as third:
            assert third.processors == [90003]
    with claim(4) as all_of_them:
        assert sorted(all_of_them.processors) == [90000, 90001, 90002, 90003]
    assert claim(5).processors == ()


@pytest.mark.parametrize(
    ("group", "file", "said", "expected"),
    [
        ("0::/a/b", "a/b/cpu.max", "200000 100000", 0),
        ("0::/a/b", "a/cpu.max", "200000 100000", 0),
        ("0::/a/b", "a/b/cpu.max", "max 100000", 2),
        ("0::/", "cpu.max", "50000 100000", 0),
        ("3:cpuset:/\n2:cpu,cpuacct:/a\n0::/", "cpu/a/cpu.cfs_quota_us", "50000", 0),
        ("1:cpu:/a", "cpu/a/cpu.cfs_quota_us", "-1", 2),
        ("1:cpuset:/a", "cpu/a/cpu.cfs_quota_us", "50000", 2),
        pytest.param(
            "\n\nno group\n1:2\n\n0::/a\n", "a/cpu.max", "1 2", 0, marks=pytest.mark.defect(42)
        ),
        pytest.param("", "cpu.max", "1 2", 2, marks=pytest.mark.defect(42)),
    ],
)
def test_nothing_is_claimed_below_a_quota(
    four: Path, group: str, file: str, said: str, expected: int
) -> None:
    (four / "cgroup").write_text(group + "\n")
    (four / file).parent.mkdir(parents=True, exist_ok=True)
    (four / file).write_text(said + "\n")
    with claim(2) as claimed:
        assert len(claimed.processors) == expected


def test_nothing_is_claimed_in_a_container(four: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "OUTERMOST", "pid:[1]")
    assert claim(2).processors == ()


def test_a_claim_ends_with_its_process_however_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processors, "_available", lambda: [90010])
    command = [sys.executable, "-c", HOLD, processors.NAME, processors.OUTERMOST]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "90010\n"
        assert claim(1).processors == ()
        holder.kill()
    with claim(1) as claimed:
        assert claimed.processors == [90010]


def test_all_threads_stay_on_their_cores() -> None:
    code = """
import os, threading
from katz_graph.executor.turns.affinity import stay_on
waiting = threading.Event()
thread = threading.Thread(target=waiting.wait)
thread.start()
stay_on([])
before = os.sched_getaffinity(thread.native_id)
stay_on([min(before)])
later = threading.Thread(target=waiting.wait)
later.start()
print(before == os.sched_getaffinity(os.getppid()), *(os.sched_getaffinity(one.native_id) == {min(before)} for one in (thread, later)))
stay_on([90000])
waiting.set()
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "True True True\n", result.stderr


def test_a_worker_that_waits_leaves_its_processor_to_others_that_want_it() -> None:
    processor = min(os.sched_getaffinity(0))
    result = subprocess.run(
        [sys.executable, "-c", WAIT, str(processor)], capture_output=True, text=True, timeout=120
    )
    # times that it lost the processor; a spinning process loses it every few milliseconds
    assert int(result.stdout) <= 15, result


class Clocks:
    """Simulates a wall clock and this process's CPU clock, which stops while others run."""

    def __init__(self) -> None:
        self.wall = self.used = 100.0

    def pass_by(self, seconds: float, others: float = 0.0) -> None:
        self.wall += seconds + others
        self.used += seconds


def test_waiters_spin_until_the_end_or_until_others_come_and_a_while_longer() -> None:
    clocks = Clocks()
    awake = Awake(1.0, lambda: clocks.wall, lambda: clocks.used)

    def waits(*looks: tuple[float, float]) -> list[bool]:
        """Returns `goes_on` after each interval: seconds of this process, seconds of others."""
        awake.begin()
        said = []
        for look in looks:
            clocks.pass_by(*look)
            said.append(awake.goes_on)
        return said

    # another thread of this process ran
    assert waits((1e-4, 0.0), (0.9, 0.0), (0.2, 0.0)) == [True, True, False]
    assert waits(*[(1e-5, 1e-4)] * 20) == [True] * 20  # interrupts
    assert waits(*[(0.06, 3e-3)] * 10) == [True] * 10  # an occasional system service
    clocks.pass_by(1.0)
    assert waits(*[(1e-5, 3e-3)] * 5) == [True, True, True, False, False]
    assert waits((1e-5, 0.0)) == [False]
    clocks.pass_by(0.0, RELEASE_S)
    assert waits((1e-5, 0.0)) == [True]
    awake.begin()
    clocks.pass_by(0.0, 0.3)
    awake.slept()  # slept for lack of work
    assert awake.goes_on
