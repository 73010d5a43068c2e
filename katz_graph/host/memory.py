"""Measures the host memory available to this process, sets how much freed memory it retains, and
recognises out-of-memory errors of all libraries. Never imports torch.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from katz_graph.host.control_groups import control_groups

Result = TypeVar("Result")

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED_BYTES = 1 << 60  # bytes; cgroups version 1 reports about this number for no limit
SIGNS = (  # message parts of out-of-memory errors without a class
    "DefaultCPUAllocator",
    "not enough memory",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "std::bad_alloc",
    "Cannot allocate memory",
)
ASKED = re.compile(r"ried to allocate ([\d.]+) ?(bytes|[KMGT]iB)")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
GB = 1e9
# parameters of glibc's `mallopt`, and their values: freed bytes to retain at the end of each heap,
# and the largest block in a heap, at most half of a thread's heap
M_TRIM_THRESHOLD, RETAINED_BYTES = -1, 256 << 20
M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES = -3, 32 << 20
WAY_OUT = (
    "use a smaller picture or batch, tiles, a smaller number format (--dtype) or a smaller model"
)


def total_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Returns the machine's memory, or the lowest limit of this process's cgroups if smaller.
    Infinite if none can be read.
    """
    return min(
        [_of(proc / "meminfo", "MemTotal"), *(limit for limit, _ in _cgroups(proc, cgroups))]
    )


def free_bytes(proc: Path = PROC, cgroups: Path = CGROUPS) -> float:
    """Returns the available bytes: the minimum over the machine, this process's cgroups, RLIMIT_AS
    and RLIMIT_DATA.
    """
    rooms = [
        _of(proc / "meminfo", "MemAvailable"),
        *(limit - used for limit, used in _cgroups(proc, cgroups)),
    ]
    for limit, taken in ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData")):
        most = resource.getrlimit(limit)[0]
        if most != resource.RLIM_INFINITY:
            rooms.append(most - status_bytes(taken, proc))
    return max(0.0, min(rooms))


def retain_freed_memory() -> None:
    """Makes glibc retain freed memory for later tensors. Otherwise it returns all beyond twice the
    largest freed block to the system after each call of a network, and the next call spends up to a
    sixth of its time on page faults. Does nothing with other C libraries.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, RETAINED_BYTES)


def status_bytes(what: str, proc: Path = PROC) -> float:
    """Returns a field of this process's status, such as VmRSS; infinite if it cannot be read."""
    return _of(proc / "self" / "status", what)


def reset_peak(proc: Path = PROC) -> None:
    """Resets VmHWM, the peak memory of this process, if the system allows it."""
    with contextlib.suppress(OSError):
        (proc / "self" / "clear_refs").write_text("5")


def _of(file: Path, what: str) -> float:
    found = re.search(rf"^{what}:\s+(\d+) kB$", _text(file), re.MULTILINE)
    return math.inf if found is None else float(found[1]) * 1024


def _cgroups(proc: Path, cgroups: Path) -> Iterator[tuple[float, float]]:
    """Yields limit and usage, without reclaimable file pages, of this process's cgroups of either
    version.
    """
    for controllers, path in control_groups(proc / "self" / "cgroup"):
        if not controllers:
            yield from _limits(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers:
            names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            yield from _limits(cgroups / "memory", path, *names)


def _limits(
    root: Path, path: str, limit: str, used: str, reclaimable: str
) -> Iterator[tuple[float, float]]:
    group = root / path
    for folder in (group, *group.parents):
        if not folder.is_relative_to(root):
            return
        most = _text(folder / limit).strip()
        if most.isdigit() and int(most) < UNLIMITED_BYTES:
            files = re.search(
                rf"^{reclaimable} (\d+)$", _text(folder / "memory.stat"), re.MULTILINE
            )
            yield (
                float(most),
                float(_text(folder / used) or 0) - (0.0 if files is None else float(files[1])),
            )


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether this error of torch, Python or the system reports a lack of device or host
    memory.
    """
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & {"OutOfMemoryError", "MemoryError"}:
        return True
    return bool(names & {"RuntimeError", "OSError", "SafetensorError"}) and any(
        sign in str(error) for sign in SIGNS
    )


@dataclass(frozen=True, slots=True)
class RanOut:
    """Reports that an attempt ran out of memory. `asked`: the bytes that could not be allocated, if
    known.

    Holds no reference to the error, whose traceback would keep the attempt's tensors alive.
    """

    asked: float | None

    @classmethod
    def of(cls, error: BaseException) -> RanOut:
        found = ASKED.search(str(error))
        return cls(None if found is None else float(found[1]) * UNITS[found[2]])

    def __str__(self) -> str:
        return (
            "out of memory"
            if self.asked is None
            else f"out of memory: {self.asked / GB:.2f} GB more could not be allocated"
        )


def memory_message(error: BaseException) -> str:
    """Describes the failed allocation and a remedy for users."""
    return f"{RanOut.of(error)}; {WAY_OUT}"


def attempt(work: Callable[[], Result]) -> Result | RanOut:
    """Runs `work` and returns its result. If memory runs out, releases its tensors and returns
    RanOut.
    """
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return RanOut.of(error)
