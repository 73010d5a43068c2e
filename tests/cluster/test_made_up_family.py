"""The engine loads, plans, places, draws, records and computes a made-up family from its
declaration alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DModel
from made_up_family import FAMILY, MadeUp, Stronger
from torch import Tensor

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.recipe import ConditioningEntry, Prompt
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.planning import Choices, plan_region
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.executor.worker.config import WorkerConfig
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.region import Region
from katz_graph.models.family import families
from katz_graph.models.loading.sources import network_recipe, pipeline_recipes
from katz_graph.models.stage_registry import register_family, stages
from katz_graph.packs import builtin_types
from katz_graph.planner.changes import parse_places
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.planner.region import bind_region, region_nodes
from katz_graph.planner.report.svg import as_svg
from katz_graph.planner.sampling import sampling_of
from katz_graph.testing.model_files import Models
from katz_graph.testing.requests import bare_context, local_engine, sample
from katz_graph.testing.tapes import Tapes
from katz_graph.testing.worker_threads import WorkerThreads

TYPES = {kind.__name__: kind.describe() for kind in (MadeUp, Stronger)}


@pytest.fixture(autouse=True)
def family() -> Iterator[None]:
    register_family(FAMILY)
    yield
    families.cache_clear()
    stages.cache_clear()


def region(models: Models, *strengths: float) -> Region:
    """Returns two UNets with guidance, each followed by the made-up stage unless its strength is 1."""
    model, clip, _ = pipeline_recipes(models.pipeline)
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    nodes = {"begin": NodeCall("StepBegin", {"model": model, "latent_image": latent, "steps": 3})}
    sides = {}
    for side, strength in zip(("cond", "uncond"), strengths, strict=True):
        common = {"model": model, "conditioning": (ConditioningEntry(Prompt(clip, side)),)}
        nodes[f"{side}.encoder"] = NodeCall("UNetEncoder", {"step": Link("begin", 0), **common})
        nodes[f"{side}.mid"] = NodeCall(
            "UNetMid", {"features": Link(f"{side}.encoder", 0), **common}
        )
        nodes[f"{side}.decoder"] = NodeCall(
            "UNetDecoder", {"features": Link(f"{side}.mid", 0), **common}
        )
        nodes[f"{side}.strong"] = NodeCall(
            "Stronger", {"prediction": Link(f"{side}.decoder", 1), "strength": strength}
        )
        sides[side] = Link(
            f"{side}.strong" if strength != 1.0 else f"{side}.decoder", 0 if strength != 1.0 else 1
        )
    nodes["guidance"] = NodeCall("CFGCombine", {**sides, "guidance": 3.0})
    nodes["end"] = NodeCall(
        "StepEnd", {"step": Link("begin", 0), "prediction": Link("guidance", 0)}
    )
    graph = Graph(nodes)
    return bind_region(graph, {**builtin_types(), **TYPES}, region_nodes(graph, "end"), {})


def test_it_samples_on_one_device_and_on_two_with_the_same_bits(sd1: Models, costs: Path) -> None:
    asked = region(sd1, 0.5, 1.0)
    with local_engine(batching=False, cache=costs) as engine:
        expected = sample(engine, asked, bare_context(engine, **TYPES))
        assert not torch.equal(expected, sample(engine, region(sd1, 1.0, 1.0)))
        engine.models.compute = Recorder(Tapes(strict=True), eager=0)
        assert torch.equal(sample(engine, asked, bare_context(engine, **TYPES)), expected)
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    pins = {**parse_places(["made_up_stronger=cpu:1", "unet=cpu:0"], ["cpu:0", "cpu:1"])}
    launchers = {one.name: WorkerThreads() for one in workers}
    choices, link = Choices(pins, batching=False), NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, choices, cache=costs, link=link, launchers=launchers) as cluster:
        program = cluster.plan(asked)
        assert program.placement["cond.strong"] == "cpu:1"
        assert torch.equal(cluster.cluster.run(program, bare_context(cluster)).samples, expected)
        assert "stronger" in as_svg(program)


@torch.no_grad()
def sampled(network: UNet2DModel, asked: Region, positive: Tensor, negative: Tensor) -> Tensor:
    """Samples with Euler's method in a plain loop over the network, at guidance 3."""
    spec, table = sampling_of(asked.begin)
    x = (
        torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
        * (1 + spec.sigmas[0] ** 2) ** 0.5
    )
    for sigma, following in pairwise(spec.sigmas):
        noise = (
            network(x / (sigma**2 + 1) ** 0.5, table.timestep_at(sigma)).sample
            + negative
            + 3.0 * (positive - negative)
        )
        x = x + noise * (following - sigma)
    return x


def test_its_network_is_loaded_and_sampled_as_a_whole(
    sd1: Models, costs: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    blocks = {
        "down_block_types": ("DownBlock2D",),
        "up_block_types": ("UpBlock2D",),
        "block_out_channels": (8,),
        "norm_num_groups": 4,
    }
    network = UNet2DModel(
        in_channels=4, out_channels=4, layers_per_block=1, attention_head_dim=4, **blocks
    ).eval()
    network.save_pretrained(tmp_path)
    model, clip = network_recipe(tmp_path), pipeline_recipes(sd1.pipeline)[1]
    positive, negative = ((ConditioningEntry(Prompt(clip, text)),) for text in ("a red square", ""))
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    drawn = expand_sampling(
        "StepBegin",
        {"model": model, "latent_image": latent, "steps": 2},
        model,
        positive,
        negative,
        3.0,
    )
    asked = bind_region(
        drawn.graph,
        {**builtin_types(), **TYPES},
        region_nodes(drawn.graph, drawn.outputs[0].node),
        {},
    )
    with local_engine(batching=False, cache=costs) as engine:
        expected = sample(engine, asked, bare_context(engine, **TYPES))
        assert engine.models.module(model).is_made_up
        texts = [
            engine.models.encode_text(Prompt(clip, text)).hidden.mean()
            for text in ("a red square", "")
        ]
        assert torch.allclose(
            expected, sampled(network, asked, *texts) / model.latent.scale, rtol=0, atol=1e-4
        )
    workers = [WorkerConfig("cpu:0"), WorkerConfig("cpu:1")]
    launchers = {one.name: WorkerThreads() for one in workers}
    link = NetworkLink(1e9, 1e-4)
    with DeviceEngine(workers, Choices(), cache=costs, link=link, launchers=launchers) as cluster:
        devices = tuple(Device(name, 1e9, 1e9) for name in ("cpu:0", "cpu:1"))
        program = plan_region(asked, Target(devices, cluster.cluster.links, {}, batching=False))
        assert {program.placement["positive-made"], program.placement["negative-made"]} == {
            "cpu:0",
            "cpu:1",
        }
        assert torch.equal(cluster.cluster.run(program, bare_context(cluster)).samples, expected)
