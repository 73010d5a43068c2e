"""Simulates a slow network on one machine: two network namespaces with a rate-limited link, and a
worker in each namespace. Needs Linux, root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from katz_graph.core.errors import RunError
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.launch.spawn import Spawn
from katz_graph.executor.worker.config import WorkerConfig

BASE, CONTROL = "base", "control"
# size of the token bucket in seconds at the link's rate; smaller buckets do not reach the rate
BUCKET = 0.004
SMALLEST_BUCKET = 64 << 10  # bytes, maximum packet size in the sender's kernel
QUEUE = 32 << 20  # bytes, queue length before packets are dropped


@dataclass(frozen=True, slots=True)
class Side:
    """Describes a namespace: its name, and the interface and address of its end of the link."""

    namespace: str
    interface: str
    address: str

    @property
    def prefix(self) -> tuple[str, ...]:
        """Returns the command prefix that runs a command in the namespace."""
        return ("ip", "netns", "exec", self.namespace)


@dataclass(frozen=True, slots=True)
class Wire:
    """Describes a link between two network namespaces."""

    first: Side
    second: Side

    def shape(self, bytes_per_second: float) -> None:
        """Limits the rate of both directions with a token bucket filter."""
        bucket = max(SMALLEST_BUCKET, int(bytes_per_second * BUCKET))
        for side in (self.first, self.second):
            filter = (
                "root",
                "tbf",
                "rate",
                f"{int(bytes_per_second * 8)}bit",
                "burst",
                str(bucket),
                "limit",
                str(QUEUE),
            )
            _do(*side.prefix, "tc", "qdisc", "replace", "dev", side.interface, *filter)


@contextmanager
def wire() -> Iterator[Wire]:
    """Creates a link at full speed; deletes it and its namespaces at the end. Raises RunError if
    they cannot be created.
    """
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing or os.geteuid() != 0:
        raise RunError(
            "a shaped link needs root and the commands ip and tc "
            f"(iproute2){f'; {missing[0]} is missing' if missing else ''}"
        )
    tag = f"katz{os.getpid()}"
    first, second = (
        Side(f"{tag}{end}", f"k{os.getpid()}{end}", f"10.77.0.{number}")
        for end, number in (("a", 1), ("b", 2))
    )
    try:
        for side in (first, second):
            _do("ip", "netns", "add", side.namespace)
        ends = ("type", "veth", "peer", "name", second.interface, "netns", second.namespace)
        _do("ip", "link", "add", first.interface, "netns", first.namespace, *ends)
        for side in (first, second):
            _do(
                "ip",
                "-n",
                side.namespace,
                "addr",
                "add",
                f"{side.address}/24",
                "dev",
                side.interface,
            )
            for interface in ("lo", side.interface):
                _do("ip", "-n", side.namespace, "link", "set", interface, "up")
        yield Wire(first, second)
    finally:
        for side in (first, second):
            subprocess.run(["ip", "netns", "del", side.namespace], capture_output=True, check=False)


def engine_over(folder: Path, link: Wire) -> DeviceEngine:
    """Starts the workers BASE and CONTROL, with one thread each, at the two ends of a link."""
    sides = {BASE: link.first, CONTROL: link.second}
    with ExitStack() as opened:
        engine = DeviceEngine(
            [WorkerConfig(name) for name in sides],
            cache=folder,
            launchers={
                name: Spawn(opened.enter_context(ForkServer(prefix=side.prefix)))
                for name, side in sides.items()
            },
            network=WorkerNetwork(
                tuple(sides), {name: side.address for name, side in sides.items()}
            ),
        )
        engine.opened.push(opened.pop_all())
        return engine


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RunError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
