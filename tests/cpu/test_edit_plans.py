"""Plans of edits on full-size models: the table in docs/planner.md, recomputed by brute force from
FLOP and bytes.
"""

from __future__ import annotations

import inspect
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
from planner_graphs import decide_by_percent, points, prompt, sampler_region
from test_models_shapes import SDXL

from katz_graph.core.recipe import Component, ModelRecipe
from katz_graph.ir.device import Device, Target, Work
from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation
from katz_graph.ir.reuse import OfferedTemplate
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.sums import total
from katz_graph.planner.compile import Known, compile_region
from katz_graph.planner.passes.cost import count_work
from katz_graph.planner.passes.reuse import count_layers, reuse
from katz_graph.planner.region import stage_of
from katz_graph.planner.report.text import as_text

DOCUMENT = Path(__file__).parents[2] / "docs" / "planner.md"
LINKS = (6, 12, 25, 55)  # GB/s
SHARE = 0.2  # of the tokens that are active
FLOPS = 790e12  # per second, without time for memory and launches
EVALUATIONS = 100  # the first one, without loads ahead, hardly counts
COUNTS = Counts()


@dataclass(frozen=True)
class Layers:
    """A number of equal layers, for one row: tokens of their output, its width, and FLOP with some
    active tokens.
    """

    number: int
    tokens: int
    width: int
    fixed: float  # FLOP for any number of active tokens
    by_token: float  # FLOP for each active token

    def flops(self, active: int) -> float:
        return self.fixed + active * self.by_token


@dataclass(frozen=True, eq=False)
class Model:
    name: str
    config: Mapping[str, Any]
    shape: tuple[int, ...]
    text: int  # tokens
    guidance: float
    layers: tuple[Layers, ...]

    @property
    def rows(self) -> int:
        return 1 if self.guidance == 1 else 2


def of_unet(number: int, side: int, width: int, text: int = 77) -> Layers:
    """Describes layers of self-attention, cross-attention and a gated feed-forward of 4 D."""
    tokens = side * side
    by_token = (4 + 4 + 24) * width**2 + 4 * (tokens + text) * width
    return Layers(number, tokens, width, 4 * tokens * width**2, by_token)


def of_transformer(
    number: int, width: int, text: int, attention: int = 1, text_parts: int = 24, vectors: int = 12
) -> Layers:
    """Describes blocks with joint attention over 64 x 64 patches and a feed-forward of 4 D.
    attention: number of attentions of the picture; text_parts: products of a text token, in 1/2 D²;
    vectors: modulations.
    """
    tokens = 64 * 64
    fixed = 4 * tokens * attention * width**2 + text_parts * text * width**2
    fixed += 4 * text * (tokens + text) * width + 2 * vectors * width**2
    by_token = (4 * attention + 16) * width**2
    by_token += 4 * (tokens + text) * width + 4 * (attention - 1) * tokens * width
    return Layers(number, tokens, width, fixed, by_token)


SD15 = {"_class_name": "UNet2DConditionModel", "cross_attention_dim": 768}
SD35 = {
    "_class_name": "SD3Transformer2DModel",
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "pos_embed_max_size": 384,
    "qk_norm": "rms_norm",
    "dual_attention_layers": list(range(13)),
}
FLUX = {"_class_name": "FluxTransformer2DModel", "guidance_embeds": True}
MODELS = (
    Model(
        "SDXL, 1024 x 1024",
        SDXL,
        (1, 4, 128, 128),
        77,
        7.0,
        (of_unet(10, 64, 640), of_unet(60, 32, 1280)),
    ),
    Model(
        "SD1.5, 512 x 512",
        SD15,
        (1, 4, 64, 64),
        77,
        7.0,
        (of_unet(5, 64, 320), of_unet(5, 32, 640), of_unet(5, 16, 1280), of_unet(1, 8, 1280)),
    ),
    Model(
        "SD3.5 medium, 1024 x 1024",
        SD35,
        (1, 16, 128, 128),
        333,
        4.5,
        (
            of_transformer(13, 1536, 333, attention=2, vectors=15),
            of_transformer(10, 1536, 333),
            of_transformer(1, 1536, 333, text_parts=6, vectors=8),
        ),
    ),
    Model(
        "FLUX.1, 1024 x 1024",
        FLUX,
        (1, 16, 128, 128),
        512,
        1.0,
        (of_transformer(19, 3072, 512), of_transformer(38, 3072, 512, vectors=3)),
    ),
)


def defaults(name: str) -> dict[str, Any]:
    """Returns the default configuration of a class of diffusers."""
    parameters = inspect.signature(getattr(diffusers, name).__init__).parameters
    return {one: found.default for one, found in parameters.items() if one != "self"}


def active(tokens: int) -> int:
    return round(SHARE * tokens)


def count(operation: Operation, shape: tuple[int, ...], tokens: int) -> Work:
    """Counts the work of an operation by layer if possible, because that is counted anyway."""
    if stage_of(operation).count_layers is None:
        return count_work(operation, shape, tokens, 2, COUNTS)
    found = count_layers(operation, shape, tokens, {}, 2, COUNTS)
    return total([*(part for one in found.layers for part in (one.before, one.full)), found.after])


@cache
def searched(model: Model) -> Program:
    network = Component("", (), json.dumps(defaults(model.config["_class_name"]) | model.config))
    recipe = ModelRecipe(network, Component("scheduler", ()))
    latent = {"samples": torch.zeros(model.shape)}
    region = sampler_region((prompt("a"),), (prompt("b"),), model.guidance, recipe, latent)
    known = Known(
        points(EVALUATIONS),
        decide_by_percent(EVALUATIONS),
        model.shape,
        count,
        lambda encoding: model.text,
        lambda program: program,
    )
    gpu = Device("cuda:0", FLOPS, 1e30, dtype="float16", torch_name="cuda:0")
    return compile_region(region, known, Target((gpu,), batching=True), "search")


@cache
def planned(model: Model, link: float) -> Program:
    sides = [model.shape[2] >> level for level in range(5)]
    template = OfferedTemplate(
        frozenset(range(EVALUATIONS)), {side**2: active(side**2) for side in sides}, link * 1e9
    )
    layers = partial(count_layers, value_bytes=2, counts=COUNTS)
    return reuse(searched(model), template, layers)


def best(model: Model, link: float, full: float) -> tuple[float, float]:
    """Returns the seconds of an evaluation and the bytes it loads, the best of all numbers of
    cached layers of each kind. full: seconds with all layers in full.
    """
    found = []
    for numbers in itertools.product(*(range(one.number + 1) for one in model.layers)):
        pairs = list(zip(model.layers, numbers, strict=True))
        saved = sum(
            number * (one.flops(one.tokens) - one.flops(active(one.tokens)))
            for one, number in pairs
        )
        loaded = sum(2 * model.rows * one.tokens * one.width * number for one, number in pairs)
        computed = full - model.rows * saved / FLOPS
        found.append((max(computed, loaded / (link * 1e9)), float(loaded)))
    return min(found)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name.split(",")[0])
def test_plans_are_the_best_of_all_choices(model: Model) -> None:
    for link in LINKS:
        report = planned(model, link).reuse
        assert report is not None and report.layers == model.rows * sum(
            one.number for one in model.layers
        )
        seconds, loaded = best(model, link, report.full)
        assert report.chosen == pytest.approx(seconds, rel=1e-6)
        assert report.bytes_loaded == pytest.approx(loaded, rel=1e-9)


def row(model: Model) -> str:
    programs = [planned(model, link) for link in LINKS]
    reports = [program.reuse for program in programs if program.reuse]
    cells = [f"{1e3 * report.chosen:.1f} ({report.cached_layers})" for report in reports]
    first = reports[0]
    return f"| {model.name} | {first.layers} | {1e3 * first.full:.1f} | {' | '.join(cells)} |"


def test_the_document_has_the_plans() -> None:
    lines = DOCUMENT.read_text().splitlines()
    assert [line for line in map(row, MODELS) if line not in lines] == []
    text = as_text(planned(MODELS[0], 6))
    assert re.search(r"cached layers: \d+ of 140, loads .* MB per evaluation\n", text)
    assert "as chosen" in text and "bound by" in text
