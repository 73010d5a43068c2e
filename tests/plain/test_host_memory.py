"""A process may use the least of the machine's, its cgroups' and its own memory limits, and retains memory
between calls.
"""

from __future__ import annotations

import math
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from katz_graph.host.memory import free_bytes, total_bytes

GB = 2**30
MEMINFO = (
    f"MemTotal:       {64 * GB // 1024} kB\nMemFree:        1 kB\nMemAvailable:   "
    f"{40 * GB // 1024} kB\n"
)


def machine(folder: Path, cgroup: str, groups: dict[str, dict[str, str]]) -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self" / "cgroup").write_text(cgroup)
    for group, files in groups.items():
        (cgroups / group).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (cgroups / group / name).write_text(f"{text}\n")
    return proc, cgroups


SECOND = {
    "memory.max": str(16 * GB),
    "memory.current": str(12 * GB),
    "memory.stat": f"anon 1\ninactive_file {2 * GB}\nactive_file 7",
}
FIRST = {
    "memory.limit_in_bytes": str(8 * GB),
    "memory.usage_in_bytes": str(3 * GB),
    "memory.stat": f"total_inactive_file {GB}",
}
UNLIMITED_BYTES = {"memory.limit_in_bytes": "9223372036854771712", "memory.usage_in_bytes": "7"}


@pytest.mark.parametrize(
    ("cgroup", "groups", "total", "free"),
    [
        ("0::/\n", {}, 64, 40),
        ("0::/a/b\n", {"a/b": {"memory.max": "max", "memory.current": "5"}}, 64, 40),
        # the limit of the parent group counts too
        ("0::/a/b\n", {"a/b": {"memory.max": "max"}, "a": SECOND}, 16, 6),
        ("0::/\n", {".": SECOND}, 16, 6),  # in a container, the group is the visible root
        ("4:memory:/job\n0::/\n", {"memory/job": FIRST, "memory": UNLIMITED_BYTES}, 8, 6),
        # a path on the host, invisible in a container
        ("4:cpu,memory:/gone\n", {"memory": FIRST}, 8, 6),
        ("4:memory:/\n", {"memory": UNLIMITED_BYTES}, 64, 40),
        pytest.param("\nno group\n0::/a\n\n", {"a": SECOND}, 16, 6, marks=pytest.mark.defect(42)),
    ],
)
def test_the_least_limit_counts(
    tmp_path: Path, cgroup: str, groups: dict[str, dict[str, str]], total: int, free: int
) -> None:
    places = machine(tmp_path, cgroup, groups)
    assert (total_bytes(*places), free_bytes(*places)) == (total * GB, free * GB)


def test_unreadable_limits_count_as_none(tmp_path: Path) -> None:
    assert total_bytes(tmp_path, tmp_path) == free_bytes(tmp_path, tmp_path) == math.inf


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process_count(limit: str) -> None:
    """The reported memory can be allocated, and not much more."""
    program = f"""
import resource
from katz_graph.host.memory import free_bytes
resource.setrlimit(resource.{limit}, (400_000_000, 400_000_000))
free = int(free_bytes())
assert 100_000_000 < free < 400_000_000
block = bytearray(free - 5_000_000)
del block
try:
    bytearray(free + 20_000_000)
except MemoryError:
    print("as told")
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert result.stdout == "as told\n", result.stderr


CHURN = """
import resource, sys, threading
from katz_graph.host.memory import retain_freed_memory

def churn():
    for _ in range(10):
        blocks = [bytearray(size << 20) for size in (8, 8, 8)]

def run():
    churn()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    churn()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

if sys.argv[1:]:
    retain_freed_memory()
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="sets parameters of glibc")
def test_memory_of_a_call_is_retained_for_the_next_one() -> None:
    """Counts the pages that the system has to clear again."""
    returned, retained = (
        int(subprocess.check_output([sys.executable, "-c", CHURN, *way]))
        for way in ((), ("retain",))
    )
    assert retained < 0.05 * returned
