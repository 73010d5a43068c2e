"""Samples pictures on Ray actors with several placements, and once more while a worker is killed.
Part of `ray_session.py`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from test_same_picture import LINK, cases, scattered

from katz_graph.core.events import Event, Progress
from katz_graph.executor.cluster.network import WorkerNetwork
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.launch.ray import RayCluster
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.testing.model_files import random_models
from katz_graph.testing.requests import bare_context, local_engine, sample


def pictures(ray: RayCluster, costs: Path, models: Path) -> dict[str, Any]:
    """Returns whether each placement's result is bitwise equal to that of one device. For the
    request whose worker is killed, also returns attempts and seconds.
    """
    torch.set_num_threads(1)
    regions = cases(random_models(models, "sd1"))[3::3]
    with local_engine(batching=False, cache=costs) as local:
        expected = [sample(local, region) for region in regions]
    places = {f"ray:{number}": place for number, place in enumerate(ray.places(2))}
    launchers = {name: ray.launcher(place) for name, place in places.items()}
    network = WorkerNetwork(tuple(places), {name: place.host for name, place in places.items()})
    assignments = [WorkerConfig(name) for name in places]
    with DeviceEngine(
        assignments, cache=costs, link=LINK, launchers=launchers, network=network
    ) as engine:
        equal = []
        for number, (region, latent) in enumerate(zip(regions, expected, strict=True)):
            made = engine.cluster.run(
                scattered(engine, region, 200 + number), bare_context(engine)
            ).samples
            equal.append(torch.equal(made, latent))
        pid = engine.cluster.call("ray:1", "identity").value["pid"]
        program, killed = scattered(engine, regions[-1], 3), list[float]()
        context = bare_context(engine)

        def listen(event: Event) -> None:
            if isinstance(event, Progress) and event.value == 2 and not killed:
                killed.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)

        context.listener = listen
        outcome = engine.cluster.run(program, context)
        after = [
            outcome.attempts,
            torch.equal(outcome.samples, expected[-1]),
            time.monotonic() - killed[0],
        ]
    return {"equal": equal, "after a kill": after}
