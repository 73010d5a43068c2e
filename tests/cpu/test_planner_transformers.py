"""Plans of full-size transformers with ControlNets on simulated devices: the gain of a second
device over links of several speeds, with residuals streamed block by block.

Work is counted on modules without memory, and simulated; expected figures were calculated by hand
from sizes of layers, bytes and blocks, without the planner.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import torch
from pace import pace

from katz_graph.core.graph import Link
from katz_graph.core.recipe import (
    Component,
    ConditioningEntry,
    ControlNetRecipe,
    ControlUse,
    Given,
    ModelRecipe,
    Picture,
    VaeRecipe,
)
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Device, NetworkLink, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.costs.counts import Counts
from katz_graph.models.family import architecture, family_of
from katz_graph.models.stage_registry import stage
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.requests import bind

STEPS = 20
RATE = 790e12  # operations a second
SD3: dict[str, Any] = {
    "num_layers": 24,
    "attention_head_dim": 64,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "caption_projection_dim": 1536,
    "pooled_projection_dim": 2048,
    "pos_embed_max_size": 192,
}
FLUX: dict[str, Any] = {
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "num_layers": 19,
    "num_single_layers": 38,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "guidance_embeds": True,
}
HUNYUAN_DIT: dict[str, Any] = {
    "attention_head_dim": 88,
    "num_attention_heads": 16,
    "hidden_size": 1408,
    "mlp_ratio": 4.3637,
    "in_channels": 4,
    "patch_size": 2,
    "cross_attention_dim": 1024,
    "cross_attention_dim_t5": 2048,
    "pooled_projection_dim": 1024,
    "use_style_cond_and_image_meta_size": False,
}
BLOCKS = 40  # of HunyuanDiT; its ControlNet has 19
LINKS = {"NVLink": 450e9, "PCIe": 25e9, "100 GbE": 12.5e9, "25 GbE": 3.1e9}


@pytest.fixture(scope="module")
def counts() -> Counts:
    return Counts()


def component(name: str, **values: Any) -> Component:
    return Component(name, (), json.dumps({"_class_name": name, **values}))


def region(kind: str, blocks: dict[str, int], tokens: int, guidance: float = 1.0) -> Region:
    match kind:
        case "sd3":
            model = component("SD3Transformer2DModel", **SD3)
            control = component("SD3ControlNetModel", **SD3 | blocks)
        case "flux":
            model = component("FluxTransformer2DModel", **FLUX)
            control = component("FluxControlNetModel", **FLUX | blocks)
        case _:
            model = component("HunyuanDiT2DModel", **HUNYUAN_DIT, num_layers=BLOCKS)
            sizes = HUNYUAN_DIT | {"transformer_num_layers": BLOCKS}
            control = component("HunyuanDiT2DControlNetModel", **sizes)
    training, takes = family_of(model).training, architecture(model)
    channels = takes.latent_channels
    recipe = ModelRecipe(model, training.scheduler_of(model), training.latent(model))
    pooled = None if takes.pooled_width is None else torch.zeros(1, takes.pooled_width)
    text = Given.of(torch.zeros(1, tokens, takes.text_width), pooled)
    vae = VaeRecipe(
        component("AutoencoderKL", latent_channels=channels, block_out_channels=[128] * 4)
    )
    use = ControlUse(ControlNetRecipe(control), Picture.of(torch.zeros(1, 64, 64, 3)), vae=vae)
    entry = (ConditioningEntry(text, control=(use,)),)
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": 1,
        "latent_image": {"samples": torch.zeros(1, channels, 128, 128)},
        "model": recipe,
    }
    expansion = expand_sampling("StepBegin", begin, recipe, entry, entry, guidance)
    return bind(expansion.graph, expansion.outputs[0].node)


def planned(
    wanted: Region,
    counts: Counts,
    devices: int,
    rate: float = 1.0,
    pins: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> Program:
    found = tuple(
        Device(f"cuda:{number}", RATE, 1e30, dtype="bfloat16", torch_name="cuda")
        for number in range(devices)
    )
    links = {
        (one.name, other.name): NetworkLink(rate, 5e-6)
        for one in found
        for other in found
        if one is not other
    }
    return plan_region(wanted, Target(found, links, pins), counts)


def seconds(program: Program) -> float:
    return min(program.alternatives.values()) / STEPS


@pytest.mark.parametrize(
    ("kind", "blocks", "tokens", "alone", "gains"),
    [
        ("sd3", (12, 0), 154, 16.3e-3, {"NVLink": 1.51, "PCIe": 1.44, "100 GbE": 1.25}),
        ("sd3", (6, 0), 154, 13.5e-3, {"NVLink": 1.25}),
        ("flux", (5, 10), 512, 120e-3, {"NVLink": 1.28, "100 GbE": 1.25}),
        ("flux", (6, 0), 512, 105e-3, {"NVLink": 1.11, "100 GbE": 1.09}),
        # hidden behind the first half of the blocks, as in a UNet: 18.2 ms
        ("hunyuan_dit", (19, 0), 333, 26.9e-3, {"NVLink": 26.9 / 18.2}),
    ],
)
def test_a_second_device_gains_as_streaming_allows(
    kind: str,
    blocks: tuple[int, int],
    tokens: int,
    alone: float,
    gains: dict[str, float],
    counts: Counts,
) -> None:
    sizes = {"num_layers": blocks[0]}
    wanted = region(
        kind, sizes if kind == "sd3" else sizes | {"num_single_layers": blocks[1]}, tokens
    )
    one = planned(wanted, counts, 1)
    assert seconds(one) == pytest.approx(alone, rel=0.03)
    for link, gain in gains.items():
        two = planned(wanted, counts, 2, LINKS[link])
        assert len(set(two.placement.values())) == 2
        assert seconds(one) / seconds(two) == pytest.approx(gain, rel=0.03), link


@pytest.mark.parametrize(
    ("kind", "blocks", "tokens"),
    [
        ("flux", {"num_layers": 5, "num_single_layers": 10}, 512),  # 25.2 MB each
        ("hunyuan_dit", {}, 333),  # 11.5 MB each
    ],
)
def test_a_slow_link_keeps_the_controlnet_where_the_model_is(
    kind: str, blocks: dict[str, int], tokens: int, counts: Counts
) -> None:
    """Its residuals would take longer than a step."""
    wanted = region(kind, blocks, tokens)
    two = planned(wanted, counts, 2, LINKS["25 GbE"])
    assert set(two.placement.values()) == {"cuda:0"}


@pytest.mark.parametrize(
    ("kind", "sizes", "tokens", "link", "gain"),
    [
        ("sd3", {"num_layers": 12}, 154, "25 GbE", 0.33),
        ("sd3", {"num_layers": 6}, 154, "100 GbE", 1.14),
        ("flux", {"num_layers": 5, "num_single_layers": 10}, 512, "25 GbE", 0.97),
        ("hunyuan_dit", {}, 333, "100 GbE", 26.9 / 26.7),
    ],
)
def test_a_whole_controlnet_elsewhere_is_as_fast_as_its_residuals_arrive(
    kind: str, sizes: dict[str, int], tokens: int, link: str, gain: float, counts: Counts
) -> None:
    """The placement is manual; the planner finds better."""
    wanted = region(kind, sizes, tokens)
    pins = {
        operation.id: ("cuda:1" if "_control" in operation.stage else "cuda:0",)
        for operation in wanted.operations
        if stage(operation.stage).costed
    }
    one, two = planned(wanted, counts, 1), planned(wanted, counts, 2, LINKS[link], pins)
    assert seconds(one) / seconds(two) == pytest.approx(gain, rel=0.03)


def test_a_plan_of_flux_with_a_controlnet_takes_a_second_at_most(counts: Counts) -> None:
    wanted = region("flux", {"num_layers": 5, "num_single_layers": 10}, 512)
    planned(wanted, counts, 1)  # counts the work of its stages
    started = time.process_time()
    planned(wanted, counts, 2, LINKS["NVLink"])
    took = time.process_time() - started
    assert took <= 1.0 * pace()


def flux2(double: int, single: int, heads: int, text: int, alone: bool = False) -> Region:
    """Returns a region of FLUX.2. `alone`: with each block as a group."""
    blocks = {"num_layers": double, "num_single_layers": single}
    sizes = blocks | {"num_attention_heads": heads, "joint_attention_dim": text}
    model = component("Flux2Transformer2DModel", **sizes, guidance_embeds=True)
    training = family_of(model).training
    recipe = ModelRecipe(model, training.scheduler_of(model), training.latent(model))
    entry = (ConditioningEntry(Given.of(torch.zeros(1, 512, text), None)),)
    begin = {
        "sampler_name": "euler",
        "scheduler": "simple",
        "steps": STEPS,
        "seed": 1,
        "latent_image": {"samples": torch.zeros(1, 128, 64, 64)},
        "model": recipe,
    }
    expansion = expand_sampling("StepBegin", begin, recipe, entry, entry, 1.0)
    nodes = expansion.graph.nodes
    (whole,) = (name for name, node in nodes.items() if node.type == "TransformerBlocks")
    if alone:
        (head,) = (name for name, node in nodes.items() if node.type == "TransformerHead")
        group = nodes[whole]
        for number in range(double + single):
            span = {"first_block": number, "last_block": number}
            nodes[f"block{number}"] = replace(group, inputs={**group.inputs, **span})
            group = replace(group, inputs={**group.inputs, "features": Link(f"block{number}", 0)})
        last = {"features": Link(f"block{number}", 0)}
        nodes[head] = replace(nodes[head], inputs={**nodes[head].inputs, **last})
        del nodes[whole]
    return bind(expansion.graph, expansion.outputs[0].node)


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [((8, 48, 48, 15360), 358e-3), ((8, 24, 32, 12288), 96e-3), ((5, 20, 24, 7680), 44e-3)],
)
def test_flux2_takes_its_products_time(
    sizes: tuple[int, int, int, int], wanted: float, counts: Counts
) -> None:
    assert seconds(planned(flux2(*sizes), counts, 1)) == pytest.approx(wanted, rel=0.03)


def test_a_plan_of_flux2_s_blocks_for_two_devices_takes_a_second_at_most(counts: Counts) -> None:
    wanted = flux2(8, 48, 48, 15360, alone=True)
    assert sum(one.stage == "transformer_blocks" for one in wanted.operations) == 56
    planned(wanted, counts, 1)  # counts the work of its stages
    started = time.process_time()
    planned(wanted, counts, 2, LINKS["NVLink"])
    took = time.process_time() - started
    assert took <= 1.0 * pace()


def test_two_sides_with_a_controlnet_each_have_a_device_of_their_own(counts: Counts) -> None:
    """Two devices halve the time: each computes one prediction with its ControlNet."""
    wanted = region("sd3", {"num_layers": 12}, 154, guidance=5.0)
    one, two = (planned(wanted, counts, number, LINKS["NVLink"]) for number in (1, 2))
    assert seconds(one) / seconds(two) == pytest.approx(2.0, rel=0.03)


def test_the_ideal_of_a_ladder_is_its_longest_path(counts: Counts) -> None:
    wanted = region("sd3", {"num_layers": 12}, 154)
    program = planned(wanted, counts, 2, LINKS["NVLink"])
    (tree,) = program.trees
    costs = {name: work.flops / RATE for name, work in program.work.items()}
    assert tree.kind == "prime"
    alone = sum(costs[name] for name in tree.leaves())
    assert alone / tree.fold(costs.__getitem__) == pytest.approx(1.53, rel=0.02)
