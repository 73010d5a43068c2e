"""Describes devices, links and work as the planner sees them. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes per value


@dataclass(frozen=True, slots=True)
class Work:
    """Counts the cost of one operation independent of any device: floating-point operations (a
    multiply-add is two), bytes, and kernel launches.
    """

    flops: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    kernels: float = 0.0

    def batched(self, times: float) -> Work:
        """Returns the work of one call with `times` as many rows: weights are read once."""
        return Work(
            self.flops * times,
            self.weight_bytes,
            self.activation_bytes * times,
            self.output_bytes * times,
            self.kernels,
        )


CostKey = tuple[str, int, bool]
"""Identifies a measurement: an operation's key (`Program.keys`), the number of rows of the call,
and whether the host's other devices were working.
"""
ROW_BUCKETS = (1, 2, 4, 8, 16)
"""Numbers of rows between which a call's seconds are interpolated. Seconds are nearly affine from 2
to 8 rows, but not at 1 and 16.
"""


def interpolated(rows: int, known: Mapping[int, float]) -> float | None:
    """Returns the seconds of a call by a straight line between the measured numbers of rows below
    and above; None outside of them.
    """
    if rows in known:
        return known[rows]
    below = max((one for one in known if one < rows), default=None)
    above = min((one for one in known if one > rows), default=None)
    if below is None or above is None:
        return None
    share = (rows - below) / (above - below)
    return known[below] + share * (known[above] - known[below])


@dataclass(frozen=True, slots=True)
class Device:
    """Describes a device as the planner sees it. Rates are measured
    (`katz_graph.executor.measure.device`) or configured.
    """

    name: str  # used in plans and messages
    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float = 0.0
    dtype: str = "float32"  # of its arithmetic
    memory_bytes: float = math.inf  # for models; inf: they are loaded and evicted as needed
    host: str = ""
    # slowdown of arithmetic while other devices of the host work too
    contention: float = 1.0
    # slowdown of memory traffic; None: equal to `contention`
    memory_contention: float | None = None
    measured: Mapping[CostKey, float] = field(default_factory=dict)  # seconds of single calls
    torch_name: str = "cpu"  # torch's device name in the process that computes
    # from host memory to device memory; inf: the device computes in host memory
    bus_bytes_per_second: float = math.inf
    room_bytes: float = math.inf  # for models together with the values that a request holds

    @property
    def is_gpu(self) -> bool:
        """Returns whether stages run with the engine's GPU kernels, in CUDA graphs."""
        return self.torch_name.startswith("cuda")

    @property
    def value_bytes(self) -> int:
        return DTYPES[self.dtype]

    def seconds(self, work: Work, busy: bool = False) -> float:
        """Estimates seconds by the roofline model: the larger of arithmetic and memory time, plus
        the launch time of each kernel (Williams et al. 2009).
        """
        slower = self.contention if busy else 1.0
        slower_memory = (
            slower if self.memory_contention is None or not busy else self.memory_contention
        )
        arithmetic = work.flops / self.flops_per_second * slower
        memory = (work.weight_bytes + work.activation_bytes) / self.bytes_per_second * slower_memory
        return max(arithmetic, memory) + work.kernels * self.seconds_per_kernel

    def cost(self, key: str, rows: int, work: Work, busy: bool = False) -> float:
        """Returns the seconds of one call with `rows` rows; `work` is the work of that call.

        Uses the measured time, or a line between two of them (`ROW_BUCKETS`). If only other numbers
        of rows or another load were measured, scales the nearest by the ratio of the roofline
        estimates. Without any measurement, returns the roofline estimate.
        """
        known = {load: self._measured(key, rows, load) for load in (busy, not busy)}
        found = interpolated(rows, known[busy])
        if found is not None:
            return found
        counted = work.flops > 0 or work.activation_bytes > 0
        work = work if counted else Work(flops=float(rows))
        predicted = self.seconds(work, busy)
        neighbour = interpolated(rows, known[not busy])
        if neighbour is not None:
            return neighbour * predicted / self.seconds(work, not busy)
        for load, times in known.items():
            if times:
                nearest = min(times, key=lambda other: abs(other - rows))
                estimate = self.seconds(work.batched(nearest / rows), load)
                return times[nearest] * predicted / estimate
        return predicted if counted else 0.0

    def _measured(self, key: str, rows: int, busy: bool) -> dict[int, float]:
        """Returns the measured seconds of calls with `rows` rows and with those of the buckets."""
        return {
            one: self.measured[key, one, busy]
            for one in {rows, *ROW_BUCKETS}
            if (key, one, busy) in self.measured
        }


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """Describes one direction between two devices: bytes per second, seconds to the first byte."""

    bytes_per_second: float
    latency: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Target:
    """Holds the resources and permissions of a program."""

    devices: tuple[Device, ...] = ()
    # by source and target device; transfers without a link are free
    links: Mapping[tuple[str, str], NetworkLink] = field(default_factory=dict)
    # stage or operation -> devices that it may run on
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()  # approximations, by name
    batching: bool | None = None  # whether equal stages share a call; None: the planner decides

    def link(self, source: str, target: str) -> NetworkLink | None:
        """Returns the link between two devices; None if transfers are free, as on one device."""
        return None if source == target else self.links.get((source, target))

    def device(self, name: str) -> Device:
        return next(device for device in self.devices if device.name == name)
