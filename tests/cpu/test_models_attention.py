"""Cached keys and values are used by name, and two requests share one module."""

import logging

import pytest
import torch
from tiny_models import FAMILIES, diffusers_arguments, random_step, random_text, unet

from katz_graph.models.families.unet import blocks as stages
from katz_graph.models.families.unet.attention import CachedKVAttention, cross_attention_keys_values


def run(model, step, text, cached):
    features = stages.mid(model, stages.encode(model, step, text, cached), text, cached)
    return stages.decode(model, features, text, cached)[1]


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_stored_projections_are_used_for_cross_attention_only(family):
    model = unet(family)
    step, text = random_step(2, 8, 8), random_text(model, 2)
    cached = cross_attention_keys_values(model, text.hidden)
    cross = {name.removesuffix(".processor") for name in model.attn_processors if "attn2" in name}
    assert set(cached) == cross
    expected = run(model, step, text, None)
    text.hidden.fill_(torch.nan)
    assert torch.equal(run(model, step, text, cached), expected)


@torch.no_grad()
def test_missing_entries_are_computed():
    model = unet("sd1")
    step, text = random_step(1, 8, 8), random_text(model, 1)
    cached = cross_attention_keys_values(model, text.hidden)
    half = dict(list(cached.items())[::2])
    assert torch.equal(run(model, step, text, half), run(model, step, text, cached))


@torch.no_grad()
def test_two_requests_alternate_on_one_module():
    model = unet("sdxl")
    requests = [
        (random_step(1, 8, 8, seed=n), random_text(model, 1, tokens=7 + 4 * n, seed=n))
        for n in range(2)
    ]
    alone = [run(model, step, text, None) for step, text in requests]
    cached = [cross_attention_keys_values(model, text.hidden) for _, text in requests]
    encoded = [
        stages.encode(model, step, text, keep)
        for (step, text), keep in zip(requests, cached, strict=True)
    ]
    middle = [
        stages.mid(model, state, text, keep)
        for (_, text), keep, state in zip(requests, cached, encoded, strict=True)
    ]
    together = [
        stages.decode(model, state, text, keep)[1]
        for (_, text), keep, state in zip(requests, cached, middle, strict=True)
    ]
    assert all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))


@torch.no_grad()
def test_diffusers_forward_takes_cached_projections_without_a_warning(caplog):
    model = unet("sd2")
    step, text = random_step(1, 8, 8), random_text(model, 1)
    expected = model(**diffusers_arguments(step, text), return_dict=False)[0]
    cached = cross_attention_keys_values(model, text.hidden)
    with caplog.at_level(logging.WARNING):
        logging.getLogger("diffusers").addHandler(caplog.handler)
        got = model(
            **diffusers_arguments(step, text),
            cross_attention_kwargs={"cached": cached},
            return_dict=False,
        )[0]
        logging.getLogger("diffusers").removeHandler(caplog.handler)
    assert torch.equal(got, expected)
    assert not caplog.records
    assert all(
        isinstance(processor, CachedKVAttention) for processor in model.attn_processors.values()
    )
