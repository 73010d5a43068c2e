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
"""Identifies a measurement: an operation's key (`Program.keys`), the number of equal operations in
one call, and whether the host's other devices were working.
"""


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
    memory_bytes: float = math.inf
    host: str = ""
    # slowdown of arithmetic while other devices of the host work too
    contention: float = 1.0
    # slowdown of memory traffic; None: equal to `contention`
    memory_contention: float | None = None
    measured: Mapping[CostKey, float] = field(default_factory=dict)  # seconds of single calls
    torch_name: str = "cpu"  # torch's device name in the process that computes
    # from host memory to device memory; inf: the device computes in host memory
    bus_bytes_per_second: float = math.inf

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

    def cost(self, key: str, members: int, work: Work, busy: bool = False) -> float:
        """Returns the seconds of one call with `members` equal operations; `work` is the work of
        one.

        Uses the measured time. If only another batch size or load was measured, scales that time by
        the ratio of the roofline estimates. Without any measurement, returns the roofline estimate.
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
