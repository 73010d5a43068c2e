"""Times the graph level without the work of nodes: parses, validates, signs and runs chains and
fans of trivial nodes, cold and fully cached, and loops that expand like those of node packs.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.bench.result import BenchResult, medians
from katz_graph.checks.validate import check
from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.executor.graph.run import GraphResult, run_graph
from katz_graph.files.folders import Folders
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.strict_json import parse_json
from katz_graph.ir.changes import PlanChanges
from katz_graph.node.types import ANY, Context, Engine, Input, NodeType, Output
from katz_graph.packs import Registry
from katz_graph.testing.loop_nodes import NODE_CLASS_MAPPINGS

if TYPE_CHECKING:
    from katz_graph.core.events import Event

SIZES = (1_000, 10_000)
ROUNDS = (250, 1_000)  # iterations of a loop
REPEATS = 5
COLD_SECONDS = 2.0  # bound at the largest size
CACHED_SECONDS = 0.5
FLATNESS = 2.0  # time per node, largest size against smallest


def _type(
    name: str,
    inputs: tuple[Input, ...],
    run: Callable[[Context, Mapping[str, Any]], Any],
    is_output: bool = False,
) -> NodeType:
    return NodeType(
        name,
        name,
        "bench",
        "",
        {port.name: port for port in inputs},
        (Output("value", "INT"),),
        is_output,
        run,
    )


STEP = Input("step", "INT", required=True, knob=True, minimum=0, maximum=1e9)
SOURCE = Input("source", "INT", required=False, knob=False)
SOURCES = tuple(
    Input(f"source_{number}", ANY, required=False, knob=False) for number in range(max(SIZES))
)
NODES = (
    _type(
        "Add", (STEP, SOURCE), lambda context, values: (values["step"] + values.get("source", 0),)
    ),
    _type("Last", (SOURCE,), lambda context, values: (values["source"],), is_output=True),
    _type("Gather", SOURCES, lambda context, values: (sum(values.values()),), is_output=True),
)
LOOPS = (V1Class(name, cls, name).describe() for name, cls in NODE_CLASS_MAPPINGS.items())
REGISTRY = Registry({kind.name: kind for kind in (*NODES, *LOOPS)})


class QuietContext:
    """Implements a context for nodes that use none of its services."""

    metadata: Mapping[str, Any] = {}
    previews, progress_interval = False, 0.0
    arrival, due, client = 1.0, math.inf, ""
    seconds_after: Mapping[str, float] = {}
    output_directory = Path()
    folders = Folders()
    types: Mapping[str, NodeType] = REGISTRY
    changes = PlanChanges()
    allowed = frozenset[str]()

    @property
    def engine(self) -> Engine:
        raise RuntimeError("trivial nodes need no engine")

    def warn(self, message: str) -> None: ...

    def wrote(self, path: Path) -> None: ...

    def deliver(self, picture: bytes) -> None: ...

    def report(self, event: Event) -> None: ...

    def wants_preview(self, node: str) -> bool:
        return False

    def check_cancelled(self) -> None: ...

    def in_pack_code(self) -> AbstractContextManager[None]:
        return nullcontext()

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        return act


def chain(size: int) -> str:
    """Returns the text of a chain: each node reads the previous one; the last is the output."""
    nodes: dict[str, Any] = {"1": {"class_type": "Add", "inputs": {"step": 1}}}
    for number in range(2, size):
        nodes[str(number)] = {
            "class_type": "Add",
            "inputs": {"step": number, "source": [str(number - 1), 0]},
        }
    nodes[str(size)] = {"class_type": "Last", "inputs": {"source": [str(size - 1), 0]}}
    return json.dumps(nodes)


def fan(size: int) -> str:
    """Returns the text of a fan: one source, `size` - 2 nodes that read the source, and an output
    that reads these nodes.
    """
    nodes: dict[str, Any] = {"1": {"class_type": "Add", "inputs": {"step": 1}}}
    for number in range(2, size):
        nodes[str(number)] = {"class_type": "Add", "inputs": {"step": number, "source": ["1", 0]}}
    nodes[str(size)] = {
        "class_type": "Gather",
        "inputs": {f"source_{number}": [str(number), 0] for number in range(2, size)},
    }
    return json.dumps(nodes)


def loop(rounds: int) -> str:
    """Returns the text of a loop of four nodes that runs by expansion."""
    nodes: dict[str, Any] = {
        "1": {"class_type": "LoopOpen", "inputs": {"value": ["2", 0]}},
        "2": {"class_type": "Add", "inputs": {"step": 0}},
        "3": {"class_type": "Plus", "inputs": {"a": ["1", 1], "b": 1}},
        "4": {"class_type": "Below", "inputs": {"a": ["3", 0], "limit": rounds}},
        "5": {
            "class_type": "LoopClose",
            "inputs": {"flow": ["1", 0], "again": ["4", 0], "value": ["3", 0]},
        },
        "6": {"class_type": "Last", "inputs": {"source": ["5", 0]}},
    }
    return json.dumps(nodes)


def run_text(text: str, cache: ResultCache) -> GraphResult:
    """Parses, checks and runs a graph. Raises the failures of its nodes."""
    graph = check(parse_workflow(parse_json(text)).graph, REGISTRY).or_raise()
    result = run_graph(graph, QuietContext(), cache)
    result.raise_failures()
    return result


def run() -> BenchResult:
    actions: dict[str, Callable[[], object]] = {}
    for shape in (chain, fan):
        for size in SIZES:
            text, warm = shape(size), ResultCache()
            run_text(text, warm)
            actions[f"{shape.__name__}_{size}_cold"] = lambda text=text: run_text(
                text, ResultCache()
            )  # type: ignore[misc]
            actions[f"{shape.__name__}_{size}_cached"] = lambda text=text, warm=warm: run_text(
                text, warm
            )  # type: ignore[misc]
    for rounds, text in ((rounds, loop(rounds)) for rounds in ROUNDS):
        actions[f"loop_{rounds}_cold"] = lambda text=text: run_text(text, ResultCache())  # type: ignore[misc]
    gc.collect()
    gc.freeze()  # excludes the bench's own objects from garbage collection
    try:
        seconds = medians(actions, REPEATS)
    finally:
        gc.unfreeze()
    metrics, bounds, ok = dict(seconds), dict[str, str](), True
    small, large = SIZES
    for kind, state in product(("chain", "fan"), ("cold", "cached")):
        name = f"{kind}_{large}_{state}"
        flatness = f"{kind}_{state}_flatness"
        limit = COLD_SECONDS if state == "cold" else CACHED_SECONDS
        ratio = (seconds[name] / large) / (seconds[f"{kind}_{small}_{state}"] / small)
        metrics[flatness] = ratio
        bounds[name] = f"< {limit} s"
        bounds[flatness] = f"< {FLATNESS}: time per node, {large} nodes against {small}"
        ok &= seconds[name] < limit and ratio < FLATNESS
    few, many = ROUNDS
    metrics["loop_flatness"] = ratio = (seconds[f"loop_{many}_cold"] / many) / (
        seconds[f"loop_{few}_cold"] / few
    )
    bounds["loop_flatness"] = f"< {FLATNESS}: time per round, {many} rounds against {few}"
    ok &= ratio < FLATNESS
    table = [
        (name, round(value, 4), 1e6 * value / int(name.split("_")[1]))
        for name, value in seconds.items()
    ]
    return BenchResult(
        "graph",
        ok,
        metrics,
        bounds,
        ("median of 5", "seconds", "microseconds per node or round"),
        table,
    )
