"""Describes devices, links and work as the planner sees them. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a value


@dataclass(frozen=True, slots=True)
class Work:
    """Counts what one operation costs, free of any device: floating-point operations (a
    multiply-add is two), bytes, and kernels started.
    """

    flops: float = 0.0
    weight_bytes: float = 0.0
    activation_bytes: float = 0.0
    output_bytes: float = 0.0
    kernels: float = 0.0

    def batched(self, others: int) -> Work:
        """Returns the work of `others` equal operations in one call: weights are read once."""
        return Work(
            self.flops * others,
            self.weight_bytes,
            self.activation_bytes * others,
            self.output_bytes * others,
            self.kernels,
        )


CostKey = tuple[str, int, bool]
"""Identifies a measurement: an operation's key (`Program.keys`), the number of equal ones in one
call, and true if the host's other devices worked.
"""


@dataclass(frozen=True, slots=True)
class Device:
    """Describes a device as the planner sees it. Rates are measured
    (`katz_graph.executor.measure.device`) or given.

    `name` is its name in plans and messages, `torch_name` torch's in the process that computes
    there. `contention`: how many times as long arithmetic takes while the other devices of its host
    work too, `memory_contention` the same of memory traffic (None: as arithmetic). `measured`:
    seconds of single calls. `bus_bytes_per_second`: from the host's memory to its own; inf: it is
    the same.
    """

    name: str
    flops_per_second: float
    bytes_per_second: float
    seconds_per_kernel: float = 0.0
    dtype: str = "float32"  # the number format that it computes in
    memory_bytes: float = math.inf
    host: str = ""
    contention: float = 1.0
    memory_contention: float | None = None
    measured: Mapping[CostKey, float] = field(default_factory=dict)
    torch_name: str = "cpu"
    bus_bytes_per_second: float = math.inf

    @property
    def is_gpu(self) -> bool:
        """Returns true where stages compute with kernels of ours, in recorded calls."""
        return self.torch_name.startswith("cuda")

    @property
    def value_bytes(self) -> int:
        return DTYPES[self.dtype]

    def seconds(self, work: Work, busy: bool = False) -> float:
        """Estimates the seconds by the roofline: the larger of arithmetic and memory time, plus the
        start of each kernel (Williams et al. 2009).
        """
        slower = self.contention if busy else 1.0
        slower_memory = (
            slower if self.memory_contention is None or not busy else self.memory_contention
        )
        arithmetic = work.flops / self.flops_per_second * slower
        memory = (work.weight_bytes + work.activation_bytes) / self.bytes_per_second * slower_memory
        return max(arithmetic, memory) + work.kernels * self.seconds_per_kernel

    def cost(self, key: str, members: int, work: Work, busy: bool = False) -> float:
        """Returns the seconds of `members` equal operations in one call, `work` being that of one.

        As measured; else what was measured of the same operations otherwise, in the ratio that the
        roofline says; else the roofline.
        """
        if (key, members, busy) in self.measured:
            return self.measured[key, members, busy]
        counted = work.flops > 0 or work.activation_bytes > 0
        work = work if counted else Work(flops=1.0)
        predicted = self.seconds(work.batched(members), busy)
        for others, was_busy in (
            (members, not busy),
            (1, busy),
            (1, not busy),
            (2, busy),
            (2, not busy),
        ):
            if (key, others, was_busy) in self.measured:
                return (
                    self.measured[key, others, was_busy]
                    * predicted
                    / self.seconds(work.batched(others), was_busy)
                )
        return predicted if counted else 0.0


@dataclass(frozen=True, slots=True)
class NetworkLink:
    """Describes one direction between two devices: bytes a second, seconds to the first byte."""

    bytes_per_second: float
    latency: float = 0.0

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Target:
    """Holds what a program may use: devices, links by source and target device (where none is given
    nothing is paid), the devices that a stage or one operation may run on, and approximations by
    name. `batching`: whether equal stages share a call; None leaves that to the planner.
    """

    devices: tuple[Device, ...] = ()
    links: Mapping[tuple[str, str], NetworkLink] = field(default_factory=dict)
    pins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    allowed: frozenset[str] = frozenset()
    batching: bool | None = None

    def link(self, source: str, target: str) -> NetworkLink | None:
        """Returns the link between two devices; None where nothing is paid, as on one device."""
        return None if source == target else self.links.get((source, target))

    def device(self, name: str) -> Device:
        return next(device for device in self.devices if device.name == name)
