"""Rounds inside kernels where torch rounds the result of an operation."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """Returns x, rounded to `dtype`, in float32."""
    return x.to(dtype).to(tl.float32)
