"""Compares kernels in Triton's interpreter, on a CPU, with float64. Run with TRITON_INTERPRET=1, as
tests/cpu/test_kernels_interpreted.py does.

The interpreter truncates casts to bfloat16, so one unit in the last place is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import UNet2DConditionModel
from torch import Tensor

from katz_graph.kernels import bias_residual as biased
from katz_graph.kernels import geglu as gated
from katz_graph.kernels import group_norm_silu as grouped
from katz_graph.kernels import layer_norm as layered
from katz_graph.kernels import upsampled_convolution as upsampled
from katz_graph.kernels.dispatch import INTERPRETED, uses_kernels
from katz_graph.kernels.triton import group_norm
from katz_graph.models.prepare import prepare
from katz_graph.testing.random_models import Kind, kinds

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")

TYPES = [torch.float32, torch.float16, torch.bfloat16]
LAYOUTS = ["channels-last", "NCHW", "part of another"]
# 320 channels as in SD and SDXL, 128 as in a VAE: each layout and type once, because interpreting
# is slow
WIDE_CASES = [(320, *pair) for pair in zip(LAYOUTS, TYPES, strict=True)]
WIDE_CASES += [(128, *pair) for pair in zip(LAYOUTS, TYPES[1:] + TYPES[:1], strict=True)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def laid(x: Tensor, layout: str) -> Tensor:
    if layout == "channels-last":
        return x.contiguous(memory_format=torch.channels_last)
    if layout == "NCHW":
        return x
    return torch.cat([x, x], dim=3)[..., : x.shape[3]]  # rows with gaps


def check(made: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Allows twice the reference's error plus half a unit in the last place (bfloat16: one)."""
    error = (made.double() - exact).abs().max()
    allowed = 2 * (reference.double() - exact).abs().max()
    # the reference may be exact by chance
    allowed += (
        torch.finfo(made.dtype).eps
        * exact.abs().max()
        * (1.0 if made.dtype == torch.bfloat16 else 0.5)
    )
    assert error <= allowed, (float(error), float(allowed))


def test_kernels_are_used() -> None:
    assert uses_kernels(torch.ones(1))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_group_norm_silu_of_indivisible_sizes(layout: str, dtype: torch.dtype) -> None:
    check_group_norm(21, 7, layout, dtype)


@pytest.mark.parametrize(("channels", "layout", "dtype"), WIDE_CASES)
def test_group_norm_silu_of_real_widths(channels: int, layout: str, dtype: torch.dtype) -> None:
    check_group_norm(channels, 32, layout, dtype, batch=1)


def check_group_norm(
    channels: int, groups: int, layout: str, dtype: torch.dtype, batch: int = 2
) -> None:
    x = laid(random(batch, channels, 5, 7, dtype=dtype), layout)
    weight, bias = random(channels, seed=1, dtype=dtype), random(channels, seed=2, dtype=dtype)
    shift = random(batch, channels, seed=3, dtype=dtype)
    for one, silu in ((shift, True), (None, False)):
        made = grouped.group_norm_silu(x, groups, weight, bias, 1e-5, one, silu)
        reference = grouped.reference(x, groups, weight, bias, 1e-5, one, silu)
        shifted = x if one is None else x + one[:, :, None, None]  # rounded to the type of x
        exact = F.group_norm(shifted.double(), groups, weight.double(), bias.double(), 1e-5)
        check(made, reference, F.silu(exact) if silu else exact)
        assert made.is_contiguous(
            memory_format=torch.channels_last
            if layout == "channels-last"
            else torch.contiguous_format
        )


def test_group_norm_of_the_widest_features() -> None:
    x = laid(random(1, 2560, 3, 3, dtype=torch.float16), "channels-last")
    weight, bias = (random(2560, seed=seed, dtype=torch.float16) for seed in (1, 2))
    made = grouped.group_norm_silu(x, 32, weight, bias, 1e-5)
    reference = grouped.reference(x, 32, weight, bias, 1e-5, None, True)
    exact = F.silu(F.group_norm(x.double(), 32, weight.double(), bias.double(), 1e-5))
    check(made, reference, exact)


def test_many_positions_are_split_and_a_large_mean_costs_no_digits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The naive variance (mean square minus squared mean) is wrong by over 1 % here."""
    # at most 8 partial statistics per group: programs read several blocks of positions
    for layout, most in ((LAYOUTS[0], 8192), (LAYOUTS[0], 8), (LAYOUTS[1], 8)):
        monkeypatch.setattr(group_norm, "MAX_MERGED", most)
        x = laid(1000 + random(1, 8, 37, 41), layout)
        weight, bias = torch.ones(8), torch.zeros(8)
        made = grouped.group_norm_silu(x, 4, weight, bias, 1e-5, None, False)
        exact = F.group_norm(x.double(), 4, eps=1e-5)
        assert (made - exact).abs().max() <= 1e-3
        grouped_by_hand = x.view(1, 4, -1) if layout == "NCHW" else x.contiguous().view(1, 4, -1)
        naive = grouped_by_hand.square().mean(2) - grouped_by_hand.mean(2).square()
        assert (naive / grouped_by_hand.double().var(2) - 1).abs().max() > 0.01


def test_a_constant_gives_the_bias_and_nan_stays_in_its_group() -> None:
    weight, bias = random(6, seed=1), random(6, seed=2)
    x = torch.full((1, 6, 4, 4), 3.0)
    made = grouped.group_norm_silu(x, 3, weight, bias, 1e-5, None, False)
    assert torch.allclose(made, bias[None, :, None, None].expand_as(made), atol=1e-5)
    x = random(1, 6, 4, 4)
    x[0, 2, 1, 1] = torch.nan
    made = grouped.group_norm_silu(x, 3, weight, bias, 1e-5, None, True)
    assert made[:, 2:4].isnan().all() and not made[:, [0, 1, 4, 5]].isnan().any()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 5, 640), (3, 4, 48), (7, 1283)])
def test_residual_layer_norm(shape: Sequence[int], dtype: torch.dtype) -> None:
    x, residual = random(*shape, dtype=dtype), random(*shape, seed=1, dtype=dtype)
    width = shape[-1]
    weight, bias = random(width, seed=2, dtype=dtype), random(width, seed=3, dtype=dtype)
    for added, one, other in (
        (residual, weight, bias),
        (residual, weight, None),
        (residual, None, None),
        (None, weight, bias),
    ):
        total, made = layered.residual_layer_norm(x, added, one, other, 1e-5)
        expected, reference = layered.residual_reference(x, added, one, other, 1e-5)
        check(total, expected, x.double() if added is None else x.double() + added.double())
        exact = F.layer_norm(
            total.double(),
            (width,),
            None if one is None else one.double(),
            None if other is None else other.double(),
        )
        check(made, reference, exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(2, 5, 160), (1, 3, 2562)])
def test_geglu(shape: Sequence[int], dtype: torch.dtype) -> None:
    x = 3 * random(*shape, dtype=dtype)
    exact = x.double().chunk(2, -1)[0] * F.gelu(x.double().chunk(2, -1)[1])
    check(gated.geglu(x), gated.reference(x), exact)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_small_results_of_the_gate_keep_their_digits(dtype: torch.dtype) -> None:
    """1 + erf loses them: at -4 the reference, in float32, is wrong by 0.6 %."""
    gates = torch.linspace(-6, 9, 700).to(dtype)
    made = gated.geglu(torch.cat([torch.ones_like(gates), gates])[None])[0].double()
    exact = gates.double() * torch.special.ndtr(gates.double())
    error = (made - exact).abs() / exact.abs().clamp(min=6e-5)  # float16's smallest normal number
    unit = torch.finfo(dtype).eps
    assert error[gates > -4].max() <= unit and error.max() <= 4 * unit


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS[:2])
@pytest.mark.parametrize("other", LAYOUTS)
def test_bias_residual(layout: str, other: str, dtype: torch.dtype) -> None:
    y = laid(random(2, 20, 9, 7, dtype=dtype), layout)
    residual = laid(random(2, 20, 9, 7, seed=1, dtype=dtype), other)
    bias = random(20, seed=2, dtype=dtype)
    exact = y.double() + bias.double()[:, None, None] + residual.double()
    made = biased.bias_residual(y, bias, residual)
    check(made, biased.reference(y, bias, residual), exact)
    assert made.stride() == y.stride()


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_upsampled_convolution(layout: str, dtype: torch.dtype) -> None:
    x = laid(random(2, 20, 5, 7, dtype=dtype), layout)
    weight = (random(12, 20, 3, 3, seed=1) / 10).to(dtype).to(memory_format=torch.channels_last)
    bias = random(12, seed=2, dtype=dtype)
    doubled = F.interpolate(x.double(), scale_factor=2)
    exact = F.conv2d(doubled, weight.double(), bias.double(), padding=1)
    made = upsampled.upsampled_convolution(x, weight, bias)
    check(made, upsampled.reference(x, weight, bias), exact)


@torch.no_grad()
@pytest.mark.parametrize("family", ["sd1", "sdxl"])
def test_a_prepared_unet_is_diffusers_within_rounding(family: Kind) -> None:
    torch.manual_seed(0)
    sizes = kinds()[family].configuration((8, 16, 24), layers=1) | {"norm_num_groups": 4}
    module = UNet2DConditionModel(**sizes).eval()
    given: dict[str, Any] = {
        "sample": random(1, 4, 8, 4),
        "timestep": 300.0,
        "encoder_hidden_states": random(1, 5, module.config.cross_attention_dim, seed=1),
    }
    if family == "sdxl":
        width = module.config.projection_class_embeddings_input_dim
        pooled = random(1, width - 6 * module.config.addition_time_embed_dim)
        given["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": torch.ones(1, 6)}
    expected = module(**given).sample
    prepare(module)
    module.to(memory_format=torch.channels_last)
    made = module(**given).sample
    assert not torch.equal(made, expected)
    assert (made - expected).abs().max() <= 1e-5 * (expected.max() - expected.min())
