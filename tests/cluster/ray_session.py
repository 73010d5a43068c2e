"""Runs one Ray session in separate namespaces and prints the observations as JSON. Started by
`test_launch_ray.py`.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

import torch
from processes import eventually, runs
from ray_pictures import pictures

from katz_graph.core.errors import KatzError
from katz_graph.executor.cluster.supervisor import Supervisor
from katz_graph.executor.launch.ray import RayCluster

seen: dict[str, Any] = {}
messages: queue.Queue[tuple[Any, ...]] = queue.Queue()


def wait_for(kind: str) -> tuple[Any, ...]:
    """Returns the supervisor's next report of this kind."""
    while True:
        item = messages.get(timeout=60)
        if item[0] == kind:
            return item


def supervise(cluster: RayCluster, workers: int, spares: bool) -> Supervisor:
    return Supervisor(
        {
            f"ray:{number}": cluster.launcher(place)
            for number, place in enumerate(cluster.places(workers))
        },
        on_message=lambda name, message: messages.put(
            (message[0], name, message[1], time.monotonic())
        ),
        on_lost=lambda name, reason: messages.put(("lost", name, reason, time.monotonic())),
        on_replaced=lambda name, connection: messages.put(
            ("replaced", name, connection, time.monotonic())
        ),
        on_failed=lambda name, error: messages.put(("failed", name, error, time.monotonic())),
        spares=spares,
    )


def lose(connection: Any, sent: signal.Signals) -> tuple[Any, float, float, str]:
    """Sends a signal to worker ray:0. Returns its next connection, the seconds until the loss was
    reported and until the worker was replaced, and the reason.
    """
    connection.send(("process", None))
    pid = wait_for("process")[2]
    began = time.monotonic()
    os.kill(pid, sent)
    _, _, reason, lost = wait_for("lost")
    _, _, connection, replaced = wait_for("replaced")
    # Ray asks a worker to end, and kills it 5 seconds later if it cannot answer (a stopped one).
    eventually(lambda: not runs(pid), 10)
    return connection, lost - began, replaced - began, reason


def others() -> list[str]:
    """Returns the other running processes of this namespace."""
    pids = {int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()} - {
        1,
        2,
        os.getpid(),
    }
    found = [
        Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")[:80]
        for pid in pids
        if runs(pid)
    ]
    return [command for command in found if command]


began = time.monotonic()
with RayCluster() as cluster:
    seen["init"] = time.monotonic() - began
    seen["pictures"] = pictures(
        cluster, Path(os.environ["KATZ_CACHE"]), Path(os.environ["TEST_MODELS"])
    )
    cluster.entry = "fake_worker:serve"
    seen["places"] = [(place.host, place.device) for place in cluster.places(2)]
    try:
        cluster.places(99)
    except KatzError as error:
        seen["too many"] = str(error)
    began = time.monotonic()
    with supervise(cluster, workers=2, spares=True) as supervisor:
        connections = supervisor.start()
        seen["start"] = time.monotonic() - began
        connections["ray:1"].send(("echo", torch.arange(5, dtype=torch.float16)))
        _, name, content, _ = wait_for("echo")
        seen["echo"] = [name, content.tolist()]
        connections["ray:0"].send(("environment", ["OMP_NUM_THREADS"]))
        seen["environment"] = wait_for("environment")[2]
        eventually(lambda: "spare 0" in supervisor.pids(), 60)
        connection, *seen["killed"] = lose(connections["ray:0"], signal.SIGKILL)
        connection, *seen["frozen"] = lose(connection, signal.SIGSTOP)
        connection.send(("echo", "still here"))
        seen["after"] = wait_for("echo")[1:3]
        began = time.monotonic()
    seen["close"] = time.monotonic() - began
    cluster.entry = "fake_worker:broken"
    try:
        supervise(cluster, workers=1, spares=False).start()
    except KatzError as error:
        seen["broken"] = str(error)
    began = time.monotonic()
seen["shutdown"] = time.monotonic() - began
seen["left"] = others()
print(json.dumps(seen))
