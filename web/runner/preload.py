"""Runs workflows before a server takes jobs: loads their models, plans them and records their
calls. Writes no picture.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from katz_graph.checks.validate import check
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph
from katz_graph.core.phases import Phases
from katz_graph.executor.graph.context import RunContext, writing_nothing
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import run_graph
from katz_graph.files.weights import is_weights
from katz_graph.formats.api import from_api
from katz_graph.formats.read import read_workflow
from katz_graph.node.types import NodeType
from katz_graph.web.runner.runs import RunnerDevices

WITH_CHECKPOINT = "txt2img.json"  # the shipped workflow that runs with a checkpoint
STEPS = 3  # evaluations that load, record and replay a network
SIDE = 512  # pixels


def preload(names: Sequence[str], place: RunnerDevices, phases: Phases) -> tuple[str, ...]:
    """Runs each workflow, or the shipped one with a checkpoint. Returns the outcome of each;
    prints errors.
    """
    return tuple(_outcome(name, place, phases) for name in names)


def _outcome(name: str, place: RunnerDevices, phases: Phases) -> str:
    began, shown = time.monotonic(), Path(name).name
    try:
        with phases.measured(f"preload {shown}"):
            _run(name, place)
    except Exception as error:
        print(f"--preload {name}: {error}", flush=True)
        return f"{shown} is not preloaded"
    return f"preloaded {shown} in {time.monotonic() - began:.1f} s"


def _run(name: str, place: RunnerDevices) -> None:
    checked = check(_graph(name, place.registry), place.registry, place.folders)
    if checked.errors:
        raise InputError("; ".join(map(str, checked.errors)))
    context = RunContext(place.engine, place.folders, place.folders.output, types=place.registry)
    try:
        with writing_nothing(context):
            run_graph(
                checked.graph, context, ResultCache("none"), checked.targets, process=place.process
            ).raise_failures()
    finally:
        place.engine.run_ended(context)


def _graph(name: str, types: Mapping[str, NodeType]) -> Graph:
    if not is_weights(name):
        return read_workflow(name, types).graph
    document = json.loads(files("katz_graph.workflows").joinpath(WITH_CHECKPOINT).read_text())
    changes = {"ckpt_name": name, "steps": STEPS, "width": SIDE, "height": SIDE}
    for node in document.values():
        inputs = node["inputs"]
        inputs.update({key: value for key, value in changes.items() if key in inputs})
    return from_api(document)
