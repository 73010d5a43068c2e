"""Compiles kernels for a GPU that may be absent, and launches none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from katz_graph.kernels.configurations import tiles
from katz_graph.kernels.dispatch import COMPILED_FOR

WARP = 32  # threads
THREADS = 1024  # limit of a program
SHARED = 1 << 20  # bytes, more than any GPU has


@dataclass(slots=True)
class Counted:
    """Counts kernels that were compiled, and those that Triton's cache had."""

    architecture: int
    compiled: int = 0
    cached: int = 0

    def note(self, *, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            self.cached += 1
        else:
            self.compiled += 1


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Stands in for Triton's driver: names a target and launches nothing. It is also the driver's
    device, so that it shares no entries of Triton's caches in memory.
    """

    architecture: int
    utils: Any = field(
        default_factory=lambda: SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": SHARED},
            load_binary=lambda *kernel: (None, None, 0, 0, THREADS),
        )
    )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.architecture, WARP)

    def get_current_device(self) -> Any:
        return self

    def get_current_stream(self, device: Any) -> int:
        return 0

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *launch: None


@contextmanager
def compiling(architecture: int) -> Iterator[Counted]:
    """Compiles the kernels of calls with meta tensors in this thread into Triton's cache, for an
    architecture, such as 90 for sm90.

    A process with such a GPU finds them: keys of the cache depend on the sources, Triton's version,
    the target, the constants, and the arguments' dtypes and alignment. The address of meta tensors,
    0, counts as aligned, like the memory of other tensors. The process must not launch kernels at
    the same time, because Triton's driver is replaced.
    """
    counted, before, listener = Counted(architecture), driver._active, knobs.compilation.listener
    chosen = COMPILED_FOR.set(architecture)
    tiles.cache_clear()  # the meta device has tiles by architecture
    driver.set_active(_Target(architecture))
    knobs.compilation.listener = counted.note
    try:
        yield counted
    finally:
        knobs.compilation.listener = listener
        driver.set_active(before)
        COMPILED_FOR.reset(chosen)
        tiles.cache_clear()
