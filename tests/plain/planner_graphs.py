"""Builds regions for planner tests. Their recipes' files need not exist; graphs load no models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ConditioningEntry,
    ControlNetRecipe,
    ControlUse,
    ModelRecipe,
    Picture,
    Prompt,
)
from katz_graph.files.folders import MINI
from katz_graph.ir.device import Device, Target, Work
from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation, Region
from katz_graph.models.loading.component import component
from katz_graph.node import Node
from katz_graph.node.types import NodeType
from katz_graph.nodes import denoise, sampling, transformer
from katz_graph.planner.compile import Known, compile_region
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes

REGISTRY: Mapping[str, NodeType] = {
    name: kind.describe()
    for module in (denoise, sampling, transformer)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, Node) and kind is not Node
}
MODEL = ModelRecipe(component(MINI / "pipeline" / "unet", "network"), Component("scheduler", ()))
LATENT = {"samples": SimpleNamespace(shape=(1, 4, 16, 16))}
CLIP = ClipRecipe(())
DEVICE = Device("cpu", 1e9, 1e9)


@dataclass(frozen=True)
class Point:
    index: int
    step: int
    sigma: float


def points(count: int) -> tuple[Point, ...]:
    return tuple(Point(index, index, float(count - index)) for index in range(count))


def prompt(text: str, *uses: ControlUse) -> ConditioningEntry:
    return ConditioningEntry(Prompt(CLIP, text), uses)


def use(name: str, start: float = 0.0, end: float = 1.0, strength: float = 1.0) -> ControlUse:
    return ControlUse(
        ControlNetRecipe(Component(name, ())),
        Picture(f"image of {name}", None),
        strength,
        start,
        end,
    )  # type: ignore[arg-type]


def sampler_region(
    positive: tuple[ConditioningEntry, ...],
    negative: tuple[ConditioningEntry, ...],
    guidance: float = 7.0,
    model: ModelRecipe = MODEL,
    latent: Mapping[str, Any] = LATENT,
) -> Region:
    expansion = expand_sampling(
        "StepBegin",
        {"model": model, "latent_image": latent, "steps": 4},
        model,
        positive,
        negative,
        guidance,
    )
    return bound(expansion.graph, expansion.outputs[0].node)


def bound(graph: Graph, end: str, values: Mapping[Link, Any] | None = None) -> Region:
    return bind_region(graph, REGISTRY, region_nodes(graph, end), values or {})


def work_of(flops: Mapping[str, float], weights: float = 0.0) -> Any:
    def count(operation: Operation, shape: tuple[int, ...], tokens: int) -> Work:
        heavy = operation.stage in flops
        return Work(
            flops=flops.get(operation.stage, 0.0),
            weight_bytes=weights if heavy else 0.0,
            output_bytes=tokens,
        )

    return count


def decide_by_percent(count: int) -> Any:
    def decide(operation: Operation, point: Any) -> bool:
        inputs = operation.inputs
        if operation.stage == "step_window":
            return bool(inputs["start_percent"] <= point.index / count < inputs["end_percent"])
        return point.index % inputs["every"] == inputs["offset"]

    return decide


def compiled(
    region: Region, evaluations: int = 4, after: str = "emit", count: Any = None, **known: Any
) -> Program:
    flops = {"unet_encoder": 4e6, "unet_mid": 1e6, "unet_decoder": 6e6, "controlnet": 5e6}
    known = {
        "count": count or work_of(flops),
        "length": lambda encoding: 77 * (1 + len(encoding.text) // 75),
        "fit": lambda program: program,
    } | known
    given = {
        name: known.pop(name)
        for name in ("devices", "links", "pins", "allowed", "batching")
        if name in known
    }
    facts = Known(points(evaluations), decide_by_percent(evaluations), (1, 4, 16, 16), **known)
    return compile_region(region, facts, Target(**{"devices": (DEVICE,)} | given), after)


def deep_features(offset: int = 0, initial: bool = False) -> Graph:
    """Builds a graph that computes the deep blocks in every other evaluation; the next reuses their
    features.
    """
    text = (prompt("a"),)
    common = {"model": MODEL, "conditioning": text}
    return Graph(
        {
            "begin": NodeCall(
                "StepBegin",
                {"model": MODEL, "latent_image": LATENT, "steps": 4}
                | ({"initial_1": "features"} if initial else {}),
            ),
            "pattern": NodeCall(
                "StepPattern", {"step": Link("begin", 0), "every": 2, "offset": offset}
            ),
            "shallow": NodeCall(
                "UNetEncoder", {"step": Link("begin", 0), "last_block": 0, **common}
            ),
            "deep": NodeCall(
                "UNetEncoder", {"features": Link("shallow", 0), "first_block": 1, **common}
            ),
            "mid": NodeCall("UNetMid", {"features": Link("deep", 0), **common}),
            "up": NodeCall("UNetDecoder", {"features": Link("mid", 0), "last_block": 1, **common}),
            "switch": NodeCall(
                "Switch",
                {
                    "condition": Link("pattern", 0),
                    "on_true": Link("up", 0),
                    "on_false": Link("begin", 1),
                },
            ),
            "last": NodeCall(
                "UNetDecoder",
                {
                    "features": Link("switch", 0),
                    "skips": Link("shallow", 0),
                    "first_block": 2,
                    **common,
                },
            ),
            "end": NodeCall(
                "StepEnd",
                {
                    "step": Link("begin", 0),
                    "prediction": Link("last", 1),
                    "next_1": Link("switch", 0),
                },
            ),
        }
    )
