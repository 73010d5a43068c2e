"""Compares kernels of norms without a mean, gated activations and rotary positions in Triton's
interpreter with float64, and with torch's operations in their order, see `test_kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import diffusers
import pytest
import torch
import torch.nn.functional as F
from test_kernels import TYPES, check, random
from torch import Tensor

from katz_graph.kernels import gated_activation as activated
from katz_graph.kernels import layer_norm as layered
from katz_graph.kernels import norm_rotary as rotary
from katz_graph.kernels import rms_norm as squared
from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.models.families.hunyuan_dit import random_models as hunyuan_dit
from katz_graph.models.families.shared.random_parts import t5
from katz_graph.models.families.z_image import random_models as z_image
from katz_graph.models.prepare import fuse_projections, prepare

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1"),
    pytest.mark.usefixtures("rounded_casts"),
]


def whole(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Draws values whose squares have an exact sum in any order."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, shape, generator=generator) / 4).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 2, 640), (2, 1, 1283)])
def test_rms_norm(shape: Sequence[int], dtype: torch.dtype) -> None:
    """Every combination of residual, gate and scale: bit-equal to torch where sums are exact, within
    torch's error elsewhere.
    """
    batch, _, width = shape
    for draw in (whole, random):
        x, residual = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)
        weight, inner = (random(width, seed=seed, dtype=dtype) for seed in (2, 3))
        gate, scale = (random(batch, 1, width, seed=seed, dtype=dtype) for seed in (4, 5))
        for one in (None, scale):
            made = squared.rms_norm(x, weight, 1e-6, one)
            expected = squared.reference(x, weight, 1e-6, one)
            if draw is whole:
                assert torch.equal(made, expected)
            check(made, expected, exact_norm(x, weight, one))
        for within, factor in ((None, None), (inner, None), (inner, gate)):
            branch = x.double() if within is None else exact_norm(x, within, factor)
            exact = residual.double() + branch
            total, made = squared.residual_rms_norm(
                x, residual, weight, 1e-6, scale, within, factor
            )
            expected = squared.residual_reference(x, residual, 1e-6, within, factor)
            if draw is whole:
                assert torch.equal(total, expected)
            check(total, expected, exact)
            check(
                made,
                squared.reference(total, weight, 1e-6, scale),
                exact_norm(total, weight, scale),
            )
        total = squared.rms_norm_residual(x, residual, inner, 1e-6, gate)
        expected = squared.residual_reference(x, residual, 1e-6, inner, gate)
        check(total, expected, residual.double() + exact_norm(x, inner, gate))


def exact_norm(x: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    normalised = F.rms_norm(x.double(), x.shape[-1:], weight.double(), 1e-6)
    return normalised if scale is None else normalised * scale.double()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norms_of_shifted_and_joined_rows(affine: bool, dtype: torch.dtype) -> None:
    width = 150
    x, other = (random(2, 3, width, seed=seed, dtype=dtype) for seed in (0, 1))
    weight, bias = (random(2 * width, seed=seed, dtype=dtype) for seed in (2, 3))
    rows = torch.cat([x, other], dim=-1)
    norm = (weight, bias, 1e-6) if affine else (None, None, 1e-6)
    weights = [one if one is None else one.double() for one in norm[:2]]
    exact = F.layer_norm(rows.double(), rows.shape[-1:], *weights, eps=1e-6)
    made = layered.joined_layer_norm(x, other, *norm)
    check(made, layered.joined_reference(x, other, *norm), exact)
    shift = random(2, 2 * width, seed=4, dtype=dtype)
    made = layered.shifted_layer_norm(rows, shift, *norm)
    exact = exact + shift.double()[:, None]
    check(made, layered.shifted_reference(rows, shift, *norm), exact)
    # torch rounds before it adds
    rounded = layered.shifted_layer_norm(rows, torch.zeros_like(shift), *norm)
    assert torch.equal(made, rounded + shift[:, None])


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", TYPES)
def test_gated_activations_of_columns_of_one_product(dtype: torch.dtype) -> None:
    gate, value = (3 * random(2, 5, 2 * 1283, dtype=dtype)).chunk(2, -1)
    exact = F.silu(gate.double()) * value.double()
    check(activated.silu_gated(gate, value), activated.silu_reference(gate, value), exact)
    exact = F.gelu(gate.double(), approximate="tanh") * value.double()
    check(activated.gelu_gated(gate, value), activated.gelu_reference(gate, value), exact)
    apart = gate.contiguous(), value.contiguous()
    assert torch.equal(activated.gelu_gated(*apart), activated.gelu_gated(gate, value))


def turned(x: Tensor, positions: Tensor, adjacent: bool) -> Tensor:
    """Multiplies pairs of x [B, S, H, D] as complex numbers by positions [1, S, D / 2]."""
    pairs = x.unflatten(-1, (-1, 2)) if adjacent else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    made = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * positions[:, :, None])
    return (made if adjacent else made.transpose(-1, -2)).flatten(-2)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("width", "adjacent"), [(16, False), (88, True)])
def test_norm_rotary_of_parts_of_one_product(
    width: int, adjacent: bool, dtype: torch.dtype
) -> None:
    """With tables in float32 (Z-Image, HunyuanDiT) and in the tokens' dtype (Qwen3)."""
    heads, tokens = 3, 2
    angles = random(tokens, width // 2, seed=1)[None]
    for draw, kind in ((whole, torch.float32), (random, torch.float32), (random, dtype)):
        product = draw(2, tokens, 3 * heads * width, dtype=dtype)
        cosine, sine = angles.cos().to(kind), angles.sin().to(kind)
        weight, bias = (random(width, seed=seed, dtype=dtype) for seed in (2, 3))
        for other in (None, bias):
            fresh = product.clone()
            query, key, value = (part.unflatten(-1, (heads, width)) for part in fresh.chunk(3, -1))
            expected = rotary.reference(key, weight, other, 1e-6, cosine, sine, adjacent)
            exact = turned(
                exact_norm(key, weight, None)
                if other is None
                else F.layer_norm(key.double(), (width,), weight.double(), other.double()),
                torch.complex(cosine.double(), sine.double()),
                adjacent,
            )
            made = rotary.norm_rotary(key, weight, other, 1e-6, cosine, sine, adjacent)
            if draw is whole and other is None:
                assert torch.equal(made, expected)
            check(made, expected, exact)
            untouched = product.chunk(3, -1)
            assert torch.equal(query.flatten(2), untouched[0]) and torch.equal(
                value.flatten(2), untouched[2]
            )


@torch.no_grad()
@pytest.mark.parametrize("make", [t5, z_image.language_model])
def test_a_prepared_text_encoder_is_transformers_within_rounding(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    module, ids = make().eval(), torch.arange(5)[None]
    expected = module(ids, output_hidden_states=True).hidden_states
    prepare(module)
    fuse_projections(module)
    found = module(ids, output_hidden_states=True).hidden_states
    for one, other in zip(found[1:], expected[1:], strict=True):
        assert not torch.equal(one, other)
        assert (one - other).abs().max() <= 1e-5 * (other.max() - other.min())


@torch.no_grad()
@pytest.mark.parametrize("family", ["z_image", "hunyuan_dit"])
def test_prepared_blocks_are_diffusers_within_rounding(family: str) -> None:
    torch.manual_seed(0)
    if family == "z_image":
        network: Any = diffusers.ZImageTransformer2DModel(**z_image.configuration(1))
        block, embedding = network.layers[0], random(2, 32, seed=2)
        angles = random(3, 8, seed=4)
        given: tuple[Any, ...] = None, torch.polar(torch.ones_like(angles), angles)[None], embedding
    else:
        network = diffusers.HunyuanDiT2DModel(**hunyuan_dit.configuration(2))
        block, text = network.blocks[-1], random(2, 4, network.config.cross_attention_dim, seed=3)
        angles = random(3, 8, seed=4).repeat_interleave(2, dim=1)
        given = text, random(2, 32, seed=2), (angles.cos(), angles.sin()), random(2, 3, 32, seed=5)
    tokens = random(2, 3, 32)
    expected = block(tokens, *given)
    prepare(network)
    fuse_projections(network)
    made = block(tokens, *given)
    assert not torch.equal(made, expected)
    assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
