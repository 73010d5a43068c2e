"""Pictures on Ray actors: of several placements, and of one whose worker is killed in the middle. Started by `test_ray_pictures.py`."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from pathlib import Path

import torch
from test_same_picture import LINK, cases, scattered

from katz_graph.bench.parity import random_models
from katz_graph.bench.requests import bare_context, sample
from katz_graph.events import Evaluated, Event
from katz_graph.executor.assignment import Assignment
from katz_graph.executor.cluster_engine import ClusterEngine
from katz_graph.executor.launch.ray import RayCluster
from katz_graph.executor.local import EngineOptions, LocalEngine
from katz_graph.executor.network import Network

torch.set_num_threads(1)
seen: dict[str, object] = {}
with tempfile.TemporaryDirectory() as folder, RayCluster() as ray:
    models = random_models(Path(folder), "sdxl")
    regions = cases(models)[::3]
    with LocalEngine(EngineOptions(batching=False)) as local:
        expected = [sample(local, region) for region in regions]
    places = {f"ray:{number}": place for number, place in enumerate(ray.places(2))}
    launchers = {name: ray.launcher(place) for name, place in places.items()}
    network = Network(tuple(places), {name: place.host for name, place in places.items()})
    with ClusterEngine([Assignment(name) for name in places], link=LINK, spares=True, launchers=launchers, network=network) as engine:
        seen["equal"] = []
        for number, (region, latent) in enumerate(zip(regions, expected, strict=True)):
            program = scattered(engine, region, 200 + number)
            made = engine.cluster.run(program, bare_context(engine)).samples
            seen["equal"].append(torch.equal(made, latent))  # type: ignore[attr-defined]
        deadline = time.monotonic() + 60
        while "spare 0" not in engine.cluster.pids() and time.monotonic() < deadline:
            time.sleep(0.1)
        pid = engine.cluster.call("ray:1", "identity").value["pid"]
        program, killed = scattered(engine, regions[-1], 3), list[float]()
        context = bare_context(engine)

        def listen(event: Event) -> None:
            if isinstance(event, Evaluated) and event.done == 2 and not killed:
                killed.append(time.monotonic())
                os.kill(pid, signal.SIGKILL)

        context.listener = listen
        outcome = engine.cluster.run(program, context)
        seen["after a kill"] = [outcome.attempts, torch.equal(outcome.samples, expected[-1]), time.monotonic() - killed[0]]
print(json.dumps(seen))
