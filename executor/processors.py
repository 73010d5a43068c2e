"""Processors of this host that workers have for themselves. Two that compute on one processor, while another one is idle, take twice as
long, and the kernel brings that about again and again where more threads are awake than processors are there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
QUOTA = Path("/sys/fs/cgroup/cpu.max")


class Claim(ExitStack):
    """Holds `processors` until it is closed, or this process ends."""

    processors: Sequence[int] = ()


def claim(number: int) -> Claim:
    """So many processors that no other claim on this host holds, one of each core before two of one core; none where they are not there.

    A claim is a socket's name in the kernel: nothing is left of it, however this process ends.
    """
    claimed, taken = Claim(), list[int]()
    if number <= _allowance():
        free = ((processor, held) for processor in _in_order(_available()) if (held := _hold(processor)) is not None)
        for processor, held in islice(free, number):
            claimed.enter_context(held)
            taken.append(processor)
    if len(taken) == number:
        claimed.processors = taken
    else:
        claimed.close()
    return claimed


def stay_on(processors: Sequence[int]) -> None:
    """Keep all threads of this process on some processors, unless there are none. Nothing happens where that is not allowed."""
    for thread in Path("/proc/self/task").iterdir() if processors else ():
        with suppress(OSError):
            os.sched_setaffinity(int(thread.name), processors)


def _available() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _allowance() -> float:
    """How many processors' time this process may use: containers may get less than they see."""
    with suppress(OSError, ValueError):
        quota, period = QUOTA.read_text().split()
        return int(quota) / int(period)
    return float("inf")


def _in_order(processors: Sequence[int]) -> Iterator[int]:
    """The first of every core, then the second ones."""
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
        held.bind(f"\0katz-graph/processor/{processor}")
    except OSError:
        held.close()
        return None
    return held
