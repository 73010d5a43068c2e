"""The regions of a sampler's step run as one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy
from trivial_graphs import expanding
from trivial_nodes import TYPES, Ran, RecordingContext, node, run

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import (
    ClipRecipe,
    Component,
    ConditioningEntry,
    Prompt,
    TextEncoderRecipe,
)
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.files.folders import MINI
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.node.types import ANY, Input, NodeType, Output
from katz_graph.packs import Registry, load_registry
from katz_graph.planner.region import RegionNodes


@dataclass
class FakeRegions:
    """Replaces the planner: a region is all nodes with one prefix, and its inputs are their links
    to other nodes.
    """

    bound: list[Mapping[Link, Any]] = field(default_factory=list)

    def region_nodes(self, graph: Graph, end: str) -> RegionNodes:
        prefix = end.removesuffix("end")
        members = tuple(
            name
            for name in graph.nodes
            if name.startswith(prefix)
            and graph.nodes[name].type in ("Begin", "Middle", "End", "Choose")
        )
        entering = tuple(
            link
            for name in members
            for _, link in graph.nodes[name].links()
            if link.node not in members
        )
        return RegionNodes(members[0], end, members, entering)

    def bind_region(
        self,
        graph: Graph,
        registry: Any,
        nodes: RegionNodes,
        values: Mapping[Link, Any],
        name: str = "",
        shown_as: Mapping[str, str] | None = None,
    ) -> Any:
        self.bound.append(values)
        return sorted(values.values())


class FakeEngine:
    def __init__(self) -> None:
        self.sampled: list[Any] = []

    def sample(self, region: Any, context: Any) -> Any:
        self.sampled.append(region)
        return f"latent of {region}", f"denoised of {region}"


def region_types() -> Registry:
    def never(context: Any, values: Any) -> Any:
        raise AssertionError("a node inside a region ran on its own")

    port = tuple(Input(name, ANY, required=False, knob=False) for name in ("value", "step"))
    kinds = {
        name: NodeType(
            name,
            name,
            "",
            "",
            {p.name: p for p in port},
            (Output("x", ANY), Output("y", ANY)),
            False,
            never,
            stage=stage,
        )
        for name, stage in (("Begin", "step_begin"), ("Middle", "unet_mid"), ("End", "step_end"))
    }
    return Registry({**TYPES, **kinds})


REGION = {
    "model": node("Number", value=1),
    "scale": node("Number", value=2),
    "begin": node("Begin", value=["model", 0]),
    "middle": node("Middle", step=["begin", 0], value=["scale", 0]),
    "end": node("End", step=["begin", 0], value=["middle", 0]),
    "save": node("Save", value=["end", 0]),
}


def test_a_region_runs_as_one_unit_on_the_values_that_enter_it() -> None:
    engine = FakeEngine()
    cache = ResultCache()
    ran = run(
        REGION, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
    )
    assert ran.result.outputs["save"] == ("latent of [1, 2]",)
    assert ran.nodes("start") == ["model", "scale", "end", "save"]
    again = run(
        REGION, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
    )
    assert again.nodes("start") == [] and len(engine.sampled) == 1
    changed = {**REGION, "middle": node("Middle", step=["begin", 0], value=["model", 0])}
    run(changed, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions())
    assert len(engine.sampled) == 2


def test_a_switch_inside_a_region_leaves_it_cacheable() -> None:
    document = {
        **REGION,
        "middle": node(
            "Choose", condition=["begin", 0], on_true=["begin", 0], on_false=["scale", 0]
        ),
    }
    engine, cache = FakeEngine(), ResultCache()
    for _ in range(2):
        ran = run(
            document, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
        )
    assert ran.nodes("start") == [] and len(engine.sampled) == 1


def test_a_region_made_by_expansion() -> None:
    inner = {
        "begin": NodeCall("Begin", {"value": 7}),
        "mid": NodeCall("Middle", {"step": Link("begin", 0), "value": Link("scale", 0)}),
        "end": NodeCall("End", {"step": Link("begin", 0), "value": Link("mid", 0)}),
    }
    expand = expanding(Graph(inner), Link("end", 0))["Expand"]
    types = Registry({**region_types(), "Expand": expand})
    document = {
        "scale": node("Number", value=2),
        "1": node("Expand"),
        "save": node("Save", value=["1", 0]),
    }
    ran = run(document, None, types, context=RecordingContext(FakeEngine()), regions=FakeRegions())
    assert ran.result.outputs["save"] == ("latent of [2]",)


def test_a_sampler_expands_to_a_region_of_the_planner() -> None:
    """The engine receives the built-in KSampler's bound region; a new prompt or strength gives
    another one.
    """
    types, _ = load_registry()
    part = Component("folder", ())
    encoder = TextEncoderRecipe(part, part)
    model, _, _ = pipeline_recipes(MINI / "pipeline")
    engine = FakeEngine()
    cache = ResultCache()

    def sample(text: str, guidance: float = 8.0) -> Ran:
        conditioning = (ConditioningEntry(Prompt(ClipRecipe((encoder,)), text)),)
        inputs = {
            "model": model,
            "positive": conditioning,
            "negative": conditioning,
            "latent_image": {"samples": numpy.zeros((1, 4, 16, 16))},
            "cfg": guidance,
        }
        graph = Graph(
            {
                "k": NodeCall("KSampler", inputs, "my sampler"),
                "save": NodeCall("Save", {"value": Link("k", 0)}),
            }
        )
        return run(graph, cache, Registry({**types, **TYPES}), context=RecordingContext(engine))

    assert sample("a red star").result.failures == {}
    assert [operation.type for operation in engine.sampled[0].operations].count("UNetMid") == 2
    assert engine.sampled[0].begin.inputs["steps"] == 20
    assert sample("a red star").nodes("start") == []
    sample("a blue star")
    sample("a blue star", guidance=1.0)
    assert len(engine.sampled) == 3
    assert [operation.type for operation in engine.sampled[2].operations].count("UNetMid") == 1
