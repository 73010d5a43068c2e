"""Compares the kernels of joint transformers in Triton's interpreter with float64, and with torch's
operations in their order, see `test_kernels`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_kernels import TYPES, check, random
from torch import Tensor

from katz_graph.ir.values import CachedActivations, Tokens
from katz_graph.kernels import head_norm as by_head
from katz_graph.kernels import joined_gelu as joined
from katz_graph.kernels import modulated_norm as modulated
from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.kernels.head_norm import HeadNorm
from katz_graph.models.loading.sources import network_recipe
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.stage_registry import stage
from katz_graph.testing.random_models import Kind, draw_network

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1"),
    pytest.mark.usefixtures("rounded_casts"),
]
EPS = 1e-6
BATCH, TOKENS, END, HEADS = 2, 5, 2, 3


def with_exact_sums(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Draws rows whose means and mean squares are exact in any order of summing: permutations of
    the odd numbers from -C to C, in eighths.
    """
    width = shape[-1]
    generator = torch.Generator().manual_seed(seed)
    order = torch.rand(shape, generator=generator).argsort(-1)
    return ((2 * order - width + 1) / 8).to(dtype)


def vectors(width: int, dtype: torch.dtype) -> list[Tensor]:
    """Draws gates, scales and shifts [B, C] as parts of one product."""
    return list(random(BATCH, 6 * width, seed=1, dtype=dtype).chunk(6, dim=1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("terms", "norms"), [(0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 1)])
def test_gated_residuals_and_modulated_norms(terms: int, norms: int, dtype: torch.dtype) -> None:
    width = 48
    residual, *values = (random(BATCH, TOKENS, width, seed=k, dtype=dtype) for k in (2, 3, 4))
    gate, other_gate, *modulations = vectors(width, dtype)
    gated = [*zip((gate, other_gate), values, strict=True)][:terms]
    pairs = [tuple(modulations[:2]), tuple(modulations[2:])][:norms]
    total, *made = modulated.computed(residual, gated, pairs, EPS)
    expected, *references = modulated.reference(residual, gated, pairs, EPS)
    assert torch.equal(total, expected)
    exact = F.layer_norm(total.double(), (width,), eps=EPS)
    for one, reference, (scale, shift) in zip(made, references, pairs, strict=True):
        wanted = exact * (1 + scale.double()[:, None]) + shift.double()[:, None]
        check(one, reference, wanted)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_modulated_norm_has_torch_s_order_of_operations(dtype: torch.dtype) -> None:
    width = 64
    x = with_exact_sums(BATCH, TOKENS, width, dtype=dtype)
    scale, shift, *_ = vectors(width, dtype)
    (made,) = modulated.modulated_norm(x, [(scale, shift)], EPS)
    exact = x.float()
    root = torch.rsqrt(exact.square().mean(-1, keepdim=True) + EPS)
    normalised = (exact * root).to(dtype)  # the mean is 0
    assert torch.equal(made, normalised * (1 + scale[:, None]) + shift[:, None])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("width", "rounds", "rotary"), [(16, False, True), (64, True, False)])
def test_a_head_norm_has_torch_s_order_of_operations(
    width: int, rounds: bool, rotary: bool, dtype: torch.dtype
) -> None:
    check_head_norm(
        with_exact_sums(BATCH, TOKENS, 3 * HEADS, width, dtype=dtype), rounds, rotary, equal=True
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("width", "rounds", "rotary"), [(24, False, True), (128, False, True), (24, True, False)]
)
def test_a_head_norm_errs_no_more_than_torch(
    width: int, rounds: bool, rotary: bool, dtype: torch.dtype
) -> None:
    x = random(BATCH, TOKENS, 3 * HEADS, width, dtype=dtype)
    check_head_norm(x, rounds, rotary, equal=False)


def check_head_norm(x: Tensor, rounds: bool, rotary: bool, equal: bool) -> None:
    """x [B, N, 3 · HEADS, D] is laid into wider rows."""
    width, dtype = x.shape[-1], x.dtype
    whole = torch.cat([x.flatten(2), random(BATCH, TOKENS, 9, dtype=dtype)], dim=2)
    weights = [random(width, seed=k, dtype=dtype) for k in range(4)]
    norms = [HeadNorm((weights[at], weights[at + 1]), EPS, rounds) for at in (0, 2)]
    positions = None
    if rotary:
        angles = random(TOKENS, width // 2, seed=5).repeat_interleave(2, dim=1)
        positions = angles.cos(), angles.sin()
    made, expected = whole.clone(), whole.clone()
    by_head.head_norm(made[..., :-9], HEADS, *norms, END, positions)
    by_head.reference(expected[..., :-9], HEADS, *norms, END, positions)
    rest = 2 * HEADS * width
    assert torch.equal(made[..., rest:], whole[..., rest:])
    if equal:
        assert torch.equal(made, expected)
        return
    exact = whole.double()
    wide = [HeadNorm(tuple(w.double() for w in one.weights), EPS, False) for one in norms]
    by_head.reference(exact[..., :-9], HEADS, *wide, END, positions)
    check(made[..., :rest], expected[..., :rest], exact[..., :rest])


def test_a_head_norm_rotates_the_queries_of_each_row_to_their_positions() -> None:
    width, tokens, listed = 24, 7, torch.tensor([[4, 0, 4], [2, 2, 1]])
    angles = random(tokens, width // 2, seed=5).repeat_interleave(2, dim=1)
    norms = [
        HeadNorm((random(width, seed=2 * at), random(width, seed=2 * at + 1)), EPS, False).one(0)
        for at in (0, 1)
    ]
    x = random(BATCH, END + listed.shape[1], HEADS * width)
    made, rotary = x.clone(), (angles.cos(), angles.sin())
    by_head.head_norm(made, HEADS, *norms, END, rotary, listed)
    for row, places in enumerate(listed.tolist()):
        order = [*range(END), *(END + place for place in places)]
        expected, tables = x[row : row + 1].clone(), (rotary[0][order], rotary[1][order])
        by_head.reference(expected, HEADS, *norms, END, tables)
        assert (made[row] - expected[0]).abs().max() <= 1e-6


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
@pytest.mark.parametrize("dtype", TYPES)
def test_gelu_is_written_behind_another_tensor(dtype: torch.dtype) -> None:
    first = random(BATCH, TOKENS, 24, dtype=dtype)
    x = (4 * random(BATCH, TOKENS, 1100, seed=1, dtype=dtype))[..., 50:]
    made, reference = joined.joined_gelu(first, x), joined.reference(first, x)
    assert torch.equal(made[..., :24], first)
    exact = F.gelu(x.double(), approximate="tanh")
    check(made[..., 24:], reference[..., 24:], exact)
    far = torch.tensor([[[-200.0, -20.0, 0.0, 9.0, 200.0]]], dtype=dtype)
    made = joined.joined_gelu(far[..., :0], far)
    assert torch.allclose(made, joined.reference(far[..., :0], far), rtol=0, atol=1e-20)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["flux", "sd35"])
def test_a_loaded_transformer_is_diffusers_within_rounding(kind: Kind, tmp_path: Path) -> None:
    eager = draw_network(kind, 3, blocks=2)
    eager.save_pretrained(tmp_path)
    module = ModelStore().network(network_recipe(tmp_path).network, "cpu", torch.float32)
    hidden, text = random(BATCH, 6, 32), random(BATCH, 4, 32, seed=1)
    tokens = Tokens(hidden, text, random(BATCH, 32, seed=2), None)  # type: ignore[arg-type]
    angles = random(1, 10, 8, seed=3).repeat_interleave(2, dim=2)
    given = {
        "features": tokens,
        "fixed": (angles.cos(), angles.sin()) if kind == "flux" else (),
        "first_block": 0,
        "last_block": -1,
    }
    (expected,) = stage("transformer_blocks").computed(eager, given)
    made, outputs = stage("transformer_blocks").computed(module, {**given, "collects": True})
    assert not torch.equal(made.hidden, expected.hidden)
    positions = torch.tensor([[1, 4, 4], [5, 2, 0]])
    activations = CachedActivations({6: positions}, outputs)
    cached = {**given, "activations": activations}
    (edited,) = stage("transformer_blocks").computed(module, cached)
    span = expected.hidden.max() - expected.hidden.min()
    for one in (made, edited):
        assert (one.hidden - expected.hidden).abs().max() <= 1e-5 * span
