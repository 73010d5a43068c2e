"""Compares the kernel that widens 8-bit weights with its reference. Run with TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from katz_graph.kernels.dispatch import INTERPRETED, uses_kernels
from katz_graph.kernels.quantised.widening import reference, widened

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET is not 1")

FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2]


def both(
    codes: Tensor, scales: Tensor | None, group: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    assert uses_kernels(codes)
    made = torch.empty_like(codes, dtype=dtype)
    return widened(codes, scales, group, dtype), reference(codes, scales, group, made)


@pytest.mark.parametrize("kind", FLOATS)
def test_each_float_of_8_bits_is_itself(kind: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(kind).reshape(4, 64)
    made, wanted = both(codes, None, 0, torch.float32)
    assert torch.equal(made.isnan(), wanted.isnan())
    assert torch.equal(made.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("group", [0, 16, 64, 256])
def test_integers_are_rotated_and_scaled(group: int, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(-128, 128, (40, 256), generator=draw, dtype=torch.int8)
    scales = torch.rand(40, generator=draw) / 100
    made, wanted = both(codes, scales, group, dtype)
    assert made.dtype == dtype and torch.equal(made, wanted)


def test_convolutions_keep_their_memory_layout() -> None:
    codes = torch.randn(6, 5, 3, 3).to(torch.float8_e4m3fn)
    codes = codes.contiguous(memory_format=torch.channels_last)
    made, wanted = both(codes, torch.rand(6), 0, torch.float32)
    assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(made, wanted)


def test_rows_of_a_larger_weight_are_written_in_place() -> None:
    codes = torch.randint(-128, 128, (8, 32), dtype=torch.int8)
    whole = torch.zeros(24, 32)
    widened(codes, torch.ones(8), 16, torch.float32, whole[8:16])
    assert torch.equal(whole[8:16], both(codes, torch.ones(8), 16, torch.float32)[1])
    assert not whole[:8].any() and not whole[16:].any()
