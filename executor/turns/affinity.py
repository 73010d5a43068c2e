"""Claims this host's processors for workers, and keeps the processor of a waiting thread busy. Two
workers on one processor take twice as long even if another processor is idle; the kernel repeatedly
schedules them so if more threads are awake than processors exist.

A pinned worker cannot move away from other programs. So processors are claimed only if claimants
see each other and may use a processor's full time: not in containers or under a CPU quota.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

from katz_graph.host.control_groups import FILE, control_groups

TOPOLOGY = Path("/sys/devices/system/cpu")
GROUPS, GROUP = Path("/sys/fs/cgroup"), FILE
# the inode number of the host's initial PID namespace
NAMESPACE, OUTERMOST = Path("/proc/self/ns/pid"), "pid:[4026531836]"
NAME = "katz-graph/processor"


class Claim(ExitStack):
    """Holds `processors` until it is closed or this process ends."""

    processors: Sequence[int] = ()


def claim(number: int) -> Claim:
    """Claims `number` processors that no other claim on this host holds: one per core before a
    second of any core. The claim is empty if too few are free.

    Each claim is an abstract socket name, which the kernel releases when this process ends in any
    way.
    """
    claimed, taken = Claim(), list[int]()
    if NAMESPACE.is_symlink() and str(NAMESPACE.readlink()) == OUTERMOST and not _has_quota():
        free = (
            (processor, held)
            for processor in _in_order(_available())
            if (held := _hold(processor)) is not None
        )
        for processor, held in islice(free, number):
            claimed.enter_context(held)
            taken.append(processor)
    if len(taken) == number:
        claimed.processors = taken
    else:
        claimed.close()
    return claimed


def claim_seats(seats: Sequence[int]) -> Claim:
    """Claims processors for several workers, all or none; claims none for a single worker. `seats`:
    each worker's number of threads that compute on processors; 0 for a worker of another device.
    """
    return claim(sum(seats) if sum(map(bool, seats)) > 1 else 0)


def stay_on(processors: Sequence[int]) -> None:
    """Pins all threads of this process to some processors, unless the list is empty. Does nothing
    if pinning is not permitted.
    """
    for thread in Path("/proc/self/task").iterdir() if processors else ():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), processors)


def _available() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _has_quota() -> bool:
    """Returns whether this process's control group, or one of its ancestors, has a CPU quota."""
    for controllers, path in control_groups(GROUP):
        if not controllers or "cpu" in controllers:
            root, inside = GROUPS / "cpu" if controllers else GROUPS, Path(path)
            if any(_is_limited(root / group) for group in (inside, *inside.parents)):
                return True
    return False


def _is_limited(group: Path) -> bool:
    """Returns whether a control group has a CPU quota, from its file of version 2 or 1."""
    for file, unlimited in (("cpu.max", "max"), ("cpu.cfs_quota_us", "-1")):
        with suppress(OSError):
            return not (group / file).read_text().startswith(unlimited)
    return False


def _in_order(processors: Sequence[int]) -> Iterator[int]:
    """Yields the first processor of every core, then the second ones."""
    cores: dict[str, list[int]] = {}
    for processor in processors:
        try:
            core = (TOPOLOGY / f"cpu{processor}" / "topology" / "thread_siblings_list").read_text()
        except OSError:
            core = str(processor)
        cores.setdefault(core, []).append(processor)
    for rank in range(max(map(len, cores.values()), default=0)):
        yield from (members[rank] for members in cores.values() if rank < len(members))


def _hold(processor: int) -> socket.socket | None:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(f"\0{NAME}/{processor}")
    except OSError:
        held.close()
        return None
    return held


MIN_LOST_S = 1e-3  # seconds without a processor that count as lost; an interrupt takes less
# Other programs compute here if more than MAX_LOST_S are lost within LOSS_WINDOW_S; system services
# take less.
LOSS_WINDOW_S, MAX_LOST_S = 0.05, 0.01
RELEASE_S = 0.5  # seconds for which a waiting thread then sleeps instead of spinning


give_way: Callable[[], object] = (
    ctypes.CDLL(None).sched_yield if hasattr(os, "sched_yield") else lambda: time.sleep(0)
)
"""Lets other threads run. Neither holds the interpreter's lock, as `os.sched_yield` does, nor idles
the processor, as `time.sleep(0)` does for 50 us. After a quarter of a second of either alternative,
the next stage takes 15 to 30 % longer than after work.
"""


class Awake:
    """Decides how long a waiting thread keeps its processor busy. Keeps it busy for some seconds,
    because a processor regains its speed slowly after idling. Gives it up if other programs want
    it: a thread that yields to them gets the processor milliseconds after its input arrives, a
    sleeping thread immediately.

    `clock` returns wall-clock seconds; `used` returns the CPU seconds of all threads of this
    process, so time that its other threads take does not count as lost.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = time.process_time,
    ) -> None:
        self._seconds, self._clock, self._used = seconds, clock, used
        self._resumes = self._since = self._lost = 0.0

    def begin(self) -> None:
        """Starts a wait."""
        self.slept()
        self._ends = self._looked + (self._seconds if self._looked >= self._resumes else 0.0)

    def slept(self) -> None:
        """Excludes a sleep from the lost time, because the thread did not want the processor."""
        self._looked = self._clock()
        self._without = self._looked - self._used()

    @property
    def goes_on(self) -> bool:
        """Returns whether to check again instead of sleeping."""
        now = self._clock()
        if (
            now - self._looked > MIN_LOST_S
            and (lost := now - self._used() - self._without) > MIN_LOST_S
        ):
            self._without += lost
            self._since, self._lost = (
                (now, lost)
                if now - self._since > LOSS_WINDOW_S
                else (self._since, self._lost + lost)
            )
            if self._lost > MAX_LOST_S:
                self._ends, self._resumes = now, now + RELEASE_S
        self._looked = now
        return now < self._ends
