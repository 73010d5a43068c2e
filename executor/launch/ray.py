"""Starts workers as Ray actors on the machines of a Ray cluster. Ray places, starts and ends
actors. All other communication uses a separate connection from the actor to the driver, and the
supervisor replaces lost workers.

Ray listens on all interfaces and unpickles its input: use only loopback or a private network. The
driver's port requires the token of the launch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pkgutil
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import InputError, RunError
from katz_graph.executor.launch.fork_server import entry_for
from katz_graph.executor.transport.codec import Closed
from katz_graph.executor.transport.connection import Connection
from katz_graph.executor.transport.handshake import accept, dial, listen
from katz_graph.ipc.child_main import end_with
from katz_graph.settings.environment import prepare_to_compute

START_TIMEOUT = 100.0  # seconds; shorter than the supervisor's, because this error is more specific
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Identifies a place for an actor. `device`: its torch name in the actor, which sees only its
    own GPU.
    """

    node: str
    host: str
    device: str


class RayCluster:
    """Connects to the cluster at `address`. Without an address, connects to the cluster that Ray
    finds, or runs a small cluster on this machine until `close`. A context manager.

    If the driver is killed, its workers end immediately; two agents of a small cluster end after a
    minute, Ray's own timeout.
    """

    def __init__(self, address: str | None = None, entry: str | None = None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError(
                "--devices ray needs Ray, which is not installed; pip install 'katz-graph[cluster]'"
            )
        import ray

        self.entry = entry
        self._closing = threading.Event()
        self._is_ours = not ray.is_initialized()
        if self._is_ours:
            try:
                ray.init(
                    address or "auto",
                    namespace="katz_graph",
                    configure_logging=False,
                    log_to_driver=False,
                )
            except ConnectionError as error:
                if address is not None:
                    raise InputError(
                        f"no Ray cluster at {address}; start one with `ray start --head`"
                    ) from error
                ray.init(
                    include_dashboard=False,
                    namespace="katz_graph",
                    configure_logging=False,
                    log_to_driver=False,
                    _node_ip_address=LOOPBACK,
                    _system_config={"worker_niceness": 0},  # Ray's default is 15
                )

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def places(self, number: int = 0) -> tuple[RayPlace, ...]:
        """Returns the first `number` places (see `find_places`)."""
        import ray

        return find_places(ray.nodes(), number)

    def launcher(self, place: RayPlace, threads: int = 1) -> RayLauncher:
        return RayLauncher(place, threads, self.entry or entry_for(place.device), self._closing)

    def close(self) -> None:
        """Cancels pending starts and leaves the cluster. Shuts down a cluster started here."""
        import ray

        self._closing.set()
        if self._is_ours:
            ray.shutdown()


def find_places(nodes: Sequence[Mapping[str, Any]], number: int = 0) -> tuple[RayPlace, ...]:
    """Returns all GPUs; without GPUs, one CPU per machine, because all devices of a run compute in
    one dtype, which is float32 with a CPU. `number` other than 0 selects that many devices: first
    GPUs, then one CPU per machine without a GPU, then further CPUs.

    `nodes`: the result of `ray.nodes()`. Raises InputError if fewer are available.
    """
    alive = sorted(
        (node for node in nodes if node["Alive"]),
        key=lambda node: (node["NodeManagerAddress"], node["NodeID"]),
    )
    accelerators, processors, further = [], [], []
    for node in alive:
        gpus, cpus = (int(node["Resources"].get(kind, 0)) for kind in ("GPU", "CPU"))
        accelerators += [RayPlace(node["NodeID"], node["NodeManagerAddress"], "cuda:0")] * gpus
        cpu = RayPlace(node["NodeID"], node["NodeManagerAddress"], "cpu")
        processors += [cpu] * min(cpus, 1 if gpus == 0 else 0)
        further += [cpu] * max(cpus - (1 if gpus == 0 else 0), 0)
    everything = accelerators + processors + further
    found = everything[:number] if number else accelerators or processors
    if not found or len(found) < number:
        there = f"the Ray cluster has {len(everything)} on {len(alive)} machines"
        raise InputError(f"--devices ray: {number or 'some'} devices were asked for; {there}")
    return tuple(found)


@dataclass(frozen=True, slots=True)
class RayLauncher:
    """Starts workers at one place of a cluster."""

    place: RayPlace
    threads: int
    entry: str
    closing: threading.Event = field(compare=False)

    in_process = False

    @property
    def any_device(self) -> bool:
        return self.place.device == "cpu"  # an actor owns its GPU from the start

    def launch(self, name: str, background: bool = False) -> Actor:
        """Starts an actor and waits until it has connected. A background actor claims no CPU,
        because it is a spare for an actor that does.

        Raises RunError if it fails or does not connect in time.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        token = secrets.token_bytes(32)
        on_gpu = self.place.device != "cpu"
        with listen(ray.util.get_node_ip_address()) as listener:
            made = ray.remote(WorkerActor).options(
                name=f"{name}-{secrets.token_hex(4)}",
                num_cpus=0 if on_gpu or background else self.threads,
                num_gpus=1 if on_gpu else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(self.place.node, soft=False),
            )
            actor = made.remote()
            host, port = listener.getsockname()[:2]
            work = actor.work.remote(host, port, token, self.entry, self.threads)

            def check() -> None:
                if self.closing.is_set() or ray.wait([work], timeout=0)[0]:
                    raise Closed(how_it_ended(work))

            try:
                connection = accept(listener, token, START_TIMEOUT, check)
            except BaseException as error:
                ray.kill(actor)
                if isinstance(error, Closed):
                    raise RunError(
                        f"its Ray actor on {self.place.host} did not connect: {error}"
                    ) from None
                raise
        return Actor(actor, work, connection)


class WorkerActor:
    """Runs in Ray: connects to the driver, serves, and ends on request or with the driver. Ray
    reports errors to the driver.
    """

    def work(self, host: str, port: int, token: bytes, entry: str, threads: int) -> None:
        prepare_to_compute(threads)
        serve = pkgutil.resolve_name(entry)
        # stays open after an error, so that the process lives until Ray has reported it
        self._connection = dial(host, port, token)
        end_with(self._connection.fileno())
        serve(self._connection)
        os._exit(0)


class Actor:
    """Controls a worker in a Ray actor, for the driver."""

    pid = None
    phases = ()

    def __init__(self, actor: Any, work: Any, connection: Connection) -> None:
        self.connection = connection
        self._actor = actor
        self._work = work

    def is_alive(self) -> bool:
        return not self.wait(0.0)

    def kill(self) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(self._actor)

    def wait(self, timeout: float) -> bool:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            return bool(ray.wait([self._work], timeout=timeout)[0])
        return True

    def last_words(self) -> str:
        return how_it_ended(self._work) if self.wait(0.0) else ""


def how_it_ended(work: Any) -> str:
    """Describes in one line why an actor's work ended, or that it did not start in time."""
    import ray

    if not ray.wait([work], timeout=0)[0]:
        return "it did not start in time"
    try:
        ray.get(work)
    except ray.exceptions.RayTaskError as error:
        return f"{type(error.cause).__name__}: {error.cause}"
    except ray.exceptions.RayError as error:
        return next(line.strip() for line in str(error).splitlines() if line.strip())
    return "its Ray actor returned"
