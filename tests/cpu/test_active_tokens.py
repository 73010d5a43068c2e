"""Layers that compute some tokens and read the others from a template give the full computation's
result if the input is the template's, and for other inputs that of their active tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from diffusers.models.attention import BasicTransformerBlock, JointTransformerBlock
from test_meta import no_waits
from test_row_loras import drawn
from tiny_models import random, random_step, random_text
from torch import Tensor
from transformers_made import EACH, inputs

from katz_graph.core.recipe import Component, ModelRecipe
from katz_graph.executor.calls.batching import on_device, split
from katz_graph.executor.recorded.recorder import Recorder
from katz_graph.ir.values import CachedActivations, Residuals, Step
from katz_graph.models.active import active_positions
from katz_graph.models.families.unet.attention import cross_attention_keys_values, install
from katz_graph.models.families.unet.embedding import added_embedding
from katz_graph.models.family import family_of_class, only_all_tokens
from katz_graph.models.lora_layers import computed
from katz_graph.models.prepare import fuse_projections, prepare, unprepared
from katz_graph.models.row_loras import row_loras
from katz_graph.models.stage_registry import stage
from katz_graph.models.stages import ROW_LORAS, Stage
from katz_graph.testing.random_models import draw_network, kinds
from katz_graph.testing.tapes import Tapes

BOUND = 1e-5  # of the range
BUCKET = 4
UNETS: Mapping[str, tuple[tuple[int, int], Mapping[str, Any]]] = {  # size, configuration
    "sd1": ((9, 7), {"layers_per_block": 1}),
    "sd2": ((8, 8), {"layers_per_block": 1, "in_channels": 9}),
    "sdxl": ((8, 13), {"layers_per_block": 1, "transformer_layers_per_block": (1, 1, 10)}),
}
TRANSFORMERS: Mapping[str, tuple[tuple[int, int], Mapping[str, Any]]] = {
    "sd3": ((9, 7), {"in_channels": 33, "out_channels": 16}),
    "sd35": ((6, 10), {}),
    "flux": ((9, 7), {}),
    "schnell": ((6, 10), {"in_channels": 384, "out_channels": 64}),
    "qwen_image": ((9, 7), {}),
}
CASES = [
    ("sd1", True),
    ("sd2", False),
    ("sdxl", False),
    *((kind, fused) for kind in TRANSFORMERS for fused in (False, True)),
]


@pytest.fixture(autouse=True)
def without_gradients() -> Any:
    with torch.no_grad():
        yield


@dataclass(frozen=True)
class Inputs:
    """Holds the inputs of an evaluation of two rows."""

    step: Step
    text: Any
    channels: Tensor | None  # in addition to the latent's


Outputs = tuple[Tensor, dict[str, Tensor]]
Computing = Callable[[Stage, Any, Mapping[str, Any]], tuple[Any, ...]]
Evaluate = Callable[..., Outputs]
"""Returns a prediction, and the layers' outputs if they are collected."""


def eagerly(one: Stage, module: Any, given: Mapping[str, Any]) -> tuple[Any, ...]:
    return one.computed(module, given)


def unet(
    module: Any,
    seen: Inputs,
    residuals: bool = False,
    compute: Computing = eagerly,
    **options: Any,
) -> Outputs:
    given = {
        "text": seen.text,
        "cached": cross_attention_keys_values(module, seen.text.hidden),
        "added": added_embedding(module, seen.text),
        "concatenated": seen.channels,
        "first_block": 0,
        "last_block": -1,
        "patches": (),
        "parametrisation": "raw",
        "step": seen.step,
        **options,
    }
    outputs: dict[str, Tensor] = {}
    for name in ("unet_encoder", "unet_mid", "unet_decoder"):
        given["features"], *more = compute(stage(name), module, given)
        if options.get("collects"):
            outputs |= more.pop()
        if residuals:
            features = given["features"]
            down = tuple(random(*one.shape, seed=at) for at, one in enumerate(features.skips))
            given["residuals_0"] = Residuals(down, random(*features.hidden.shape))
    return more[0], outputs


def transformer(
    module: Any,
    seen: Inputs,
    residuals: bool = False,
    compute: Computing = eagerly,
    **options: Any,
) -> Outputs:
    given = {
        "text": seen.text,
        "cells": seen.step.x.shape[-2:],
        "latents": (),
        "placing": "offset",
        "before": 0,
        "kinds": (),
        "reads_pooled": seen.text.pooled is not None,
        "concatenated": seen.channels,
        "first_block": 0,
        "last_block": -1,
        "parametrisation": "raw",
        "step": seen.step,
        **options,
    }
    for name in ("fixed", "context", "pooled"):
        (given[name],) = stage(f"transformer_{name}").computed(module, given)
    (given["features"],) = stage("transformer_embed").computed(module, given)
    if residuals:
        given["residuals_0"] = random(*given["features"].hidden.shape)
    given["features"], *more = compute(stage("transformer_blocks"), module, given)
    (prediction,) = compute(stage("transformer_head"), module, given)
    return prediction, more.pop() if more else {}


def evaluate_of(kind: str) -> Evaluate:
    return unet if kind in UNETS else transformer


def drawn_network(kind: Any) -> Any:
    if kind not in UNETS:
        return draw_network(kind, 3, **TRANSFORMERS[kind][1])
    torch.manual_seed(1)
    module = kinds()[kind].network_of({**kinds()[kind].configuration(), **UNETS[kind][1]})
    install(module)
    return module.requires_grad_(False)


@cache
def network(kind: str, fused: bool) -> Any:
    """Returns a prepared network; tests must not change it."""
    module = drawn_network(kind)
    prepare(module)
    if fused:
        fuse_projections(module)
    return module


def drawn_inputs(kind: str, module: Any, seed: int = 0) -> Inputs:
    if kind in UNETS:
        size, latent = UNETS[kind][0], 4
        step, text = random_step(2, *size, seed=seed), random_text(module, 2, seed=seed)
        extra = module.config.in_channels - latent
    else:
        size, latent = TRANSFORMERS[kind][0], 16
        step, text = inputs(module, 2, torch.float32, seed)
        x = random(2, latent, *size, seed=seed)
        step = replace(step, x=x, model_input=x)
        patch = 1 if kind.startswith("sd3") else 4
        extra = module.config.in_channels // patch - latent
    return Inputs(step, text, random(2, extra, *size, seed=seed) if extra else None)


def positions(kind: str, size: tuple[int, ...], left: int = 0) -> dict[int, Tensor]:
    """Returns the active tokens of soft masks, another part of the picture for each row. `left`:
    their first column.
    """
    height, width = size
    mask = torch.zeros(2, 1, height, width)
    for row in range(2):
        mask[row, :, row : height // 2 + row, left : left + width // 3] = 0.1
    side, levels = (1, 4) if kind in UNETS else (2, 1)
    return active_positions(mask, side, levels, bucket=BUCKET)


def far(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max() / (other.max() - other.min()))


@pytest.mark.parametrize(("side", "margin", "bucket"), [(1, 0, 4), (2, 1, 1), (2, 3, 4)])
def test_tokens_under_the_mask_or_near_it_are_active(side: int, margin: int, bucket: int) -> None:
    height, width, levels = 17, 30, 3
    mask = torch.zeros(4, 1, height, width)  # the first row is empty, the last full
    mask[1, 0, 5, 29] = 0.01
    mask[2, 0, 2:7, 3:9] = 0.5
    mask[3] = 1
    found = active_positions(mask, side, levels, margin, bucket)
    for level in range(levels):
        cells = side * 2**level
        rows, columns = -(-height // cells), -(-width // cells)
        wanted: list[set[int]] = [set() for _ in mask]
        for row, _, y, x in (mask > 0).nonzero().tolist():
            near = range(max(0, x - margin), min(width, x + margin + 1))
            for down in range(max(0, y - margin), min(height, y + margin + 1)):
                wanted[row] |= {down // cells * columns + across // cells for across in near}
        positions = found[rows * columns]
        assert [set(row) for row in positions.tolist()[1:]] == wanted[1:]
        alone = active_positions(mask[1:3], side, levels, margin, bucket)[rows * columns]
        most = max(map(len, wanted[1:3]))
        assert most <= alone.shape[1] < most + bucket


@pytest.mark.parametrize(("kind", "fused"), CASES)
def test_template_as_input_gives_the_full_computation(kind: str, fused: bool) -> None:
    """Also with a ControlNet's residuals and with LoRAs by row."""
    module, evaluate = network(kind, fused), evaluate_of(kind)
    seen = drawn_inputs(kind, module)
    active = positions(kind, seen.step.x.shape[-2:])
    loras = row_loras((drawn(module, 3, 5), None), (1, 1), 2)

    def with_loras(**options: Any) -> Outputs:
        found = computed(lambda *_: evaluate(module, seen, **options), module, {ROW_LORAS: loras})
        return found[0], found[1]

    full, outputs = evaluate(module, seen, collects=True)
    assert torch.equal(full, evaluate(module, seen)[0])
    none = CachedActivations(active, {})
    assert torch.equal(full, evaluate(module, seen, activations=none)[0])
    wrong = CachedActivations(active, {name: one.roll(1, 1) for name, one in outputs.items()})
    off, _ = evaluate(module, seen, activations=wrong)
    assert far(off, full) > 1000 * BOUND  # tokens outside the mask come from the template
    for options in ({}, {"residuals": True}, {"loras": True}):
        call = with_loras if options.pop("loras", False) else None
        call = call or (lambda **more: evaluate(module, seen, **more))
        wanted, outputs = call(collects=True, **options)
        found, _ = call(activations=CachedActivations(active, outputs), **options)
        assert far(found, wanted) <= BOUND


@pytest.mark.parametrize(("kind", "fused"), CASES)
def test_active_tokens_of_another_input_are_computed_from_it(kind: str, fused: bool) -> None:
    """One layer alone reads the template."""
    module, evaluate = network(kind, fused), evaluate_of(kind)
    template, edit = (drawn_inputs(kind, module, seed) for seed in (0, 50))
    size = edit.step.x.shape[-2:]
    active = positions(kind, size)
    _, known = evaluate(module, template, collects=True)
    full, wanted = evaluate(module, edit, collects=True)
    names = list(known)
    for name in {*names[:: max(1, len(names) // 4)], names[-1]}:
        one = CachedActivations(active, {name: known[name]})
        _, found = evaluate(module, edit, activations=one, collects=True)
        tokens = known[name].shape[1]
        for row, places in enumerate(active[tokens]):
            others = torch.ones(tokens, dtype=torch.bool).index_fill(0, places, False)
            assert far(found[name][row, places], wanted[name][row, places]) <= BOUND
            assert torch.equal(found[name][row, others], known[name][row, others])
    everywhere = {one: torch.arange(one).repeat(2, 1) for one in active}
    found, _ = evaluate(module, edit, activations=CachedActivations(everywhere, known))
    assert far(found, full) <= BOUND
    together, _ = evaluate(module, edit, activations=CachedActivations(active, known))
    for row, (lone, cached) in enumerate(
        zip(split(edit, (1, 1)), split(CachedActivations(active, known), (1, 1)), strict=True)
    ):
        alone, _ = evaluate(module, lone, activations=cached)
        assert far(together[row : row + 1], alone) <= BOUND


@pytest.mark.parametrize("kind", ["sd2", "sd35", "flux"])
def test_another_mask_of_a_bucket_is_computed_by_the_same_recording(kind: str) -> None:
    module, evaluate = network(kind, True), evaluate_of(kind)
    seen, edit = (drawn_inputs(kind, module, seed) for seed in (0, 50))
    recorder = Recorder(Tapes(strict=True), eager=0)
    full, known = evaluate(module, seen, collects=True, compute=recorder)
    assert torch.equal(full, evaluate(module, seen)[0])
    captures = 2 * recorder.use.captures  # a form that collects, and one that reads
    sets = [positions(kind, edit.step.x.shape[-2:], left) for left in (0, 2)]
    assert not all(torch.equal(one, sets[1][level]) for level, one in sets[0].items())
    for active in sets:
        given = {"activations": CachedActivations(active, known)}
        found, _ = evaluate(module, edit, compute=recorder, **given)
        assert far(found, evaluate(module, edit, **given)[0]) <= BOUND
    assert recorder.use.captures <= captures and not recorder.use.eager


@pytest.mark.parametrize("kind", ["sd2", "sd35", "flux"])
def test_no_call_waits_for_its_device(kind: str) -> None:
    module, evaluate = drawn_network(kind).to("meta"), evaluate_of(kind)
    prepare(module)
    fuse_projections(module)
    seen = drawn_inputs(kind, module)
    active = on_device(positions(kind, seen.step.x.shape[-2:]), torch.device("meta"))

    def without_waits(one: Stage, module: Any, given: Mapping[str, Any]) -> tuple[Any, ...]:
        with no_waits():
            return one.computed(module, given)

    given = {"seen": on_device(seen, torch.device("meta")), "compute": without_waits}
    full, outputs = evaluate(module, **given, collects=True)
    cached = CachedActivations(active, outputs)
    assert evaluate(module, **given, activations=cached)[0].shape == full.shape


@pytest.mark.parametrize("kind", ["sd1", "sd3"])
def test_a_layer_with_its_library_s_forward_computes_all_tokens(
    kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("diffusers"), "propagate", True)
    module, evaluate = drawn_network(kind), evaluate_of(kind)
    blocks = (BasicTransformerBlock, JointTransformerBlock)
    name, block = next(pair for pair in module.named_modules() if isinstance(pair[1], blocks))
    block.set_chunk_feed_forward(1)
    prepare(module)
    assert sum(unprepared(module).values()) == 1
    seen = drawn_inputs(kind, module)
    full, outputs = evaluate(module, seen, collects=True)
    left_out = name if kind in UNETS else "0"
    assert left_out not in outputs and outputs
    cached = CachedActivations(positions(kind, seen.step.x.shape[-2:]), outputs)
    cached = replace(cached, outputs={**outputs, left_out: next(iter(outputs.values())) + 9})
    assert far(evaluate(module, seen, activations=cached)[0], full) <= BOUND
    assert not caplog.messages


@pytest.mark.parametrize("kind", ["sdxl", *EACH])
def test_families_declare_whether_their_layers_compute_active_tokens_only(kind: Any) -> None:
    if kind in (*UNETS, *TRANSFORMERS):
        module = network(kind, False)
        seen = drawn_inputs(kind, module)
    else:
        module = draw_network(kind, 3)
        prepare(module)
        seen = Inputs(*inputs(module, 2, torch.float32), None)
    full, outputs = evaluate_of(kind)(module, seen, collects=True)
    family = family_of_class(type(module).__name__)
    assert family is not None
    part = Component("model", (), json.dumps({"_class_name": family.network.class_name}))
    reason = only_all_tokens(ModelRecipe(part, part))
    if outputs:
        assert not reason
        assert "reference" in only_all_tokens(ModelRecipe(part, part), references=True)
    else:
        assert family.short in reason and "SDXL" in reason
        cached = CachedActivations({}, {"0": full})
        assert torch.equal(evaluate_of(kind)(module, seen, activations=cached)[0], full)
