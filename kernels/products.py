"""Computes products with oneDNN on CPUs where torch's default BLAS library is slower. torch
includes both.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_ROWS = 16  # rows of a product; with fewer the BLAS library is faster
MIN_MULTIPLICATIONS = (
    1 << 20
)  # multiplications of a product; with fewer, oneDNN's startup time dominates
FULL_AVX512 = 26  # first AMD CPU family with 512 bits wide AVX-512 units
CPUINFO = Path("/proc/cpuinfo")
LIBRARY_ONLY = "KATZ_LIBRARY_PRODUCTS"
"""The environment variable that, set to 1, makes layers compute bit for bit as torch does."""


def lags(cpuinfo: str) -> bool:
    """Returns whether torch's BLAS library uses only half of a CPU's vector width: MKL uses AVX2 on
    CPUs of other makers than Intel. `cpuinfo`: text of Linux's /proc/cpuinfo.
    """
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    said = {name.strip(): value.strip() for name, _, value in lines}
    return (
        said.get("vendor_id") == "AuthenticAMD"
        and int(said.get("cpu family", 0)) >= FULL_AVX512
        and "avx512f" in said.get("flags", "").split()
    )


def _here() -> bool:
    built = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    linux = platform.system() == "Linux" and CPUINFO.exists()
    allowed = os.environ.get(LIBRARY_ONLY) != "1"
    return built and linux and allowed and lags(CPUINFO.read_text())


BY_ONEDNN = _here()
"""Whether products on this machine's CPU use oneDNN. Depends on the hardware only, so all processes
of a machine round alike.
"""


def by_onednn(x: Tensor) -> bool:
    """Returns whether layers use oneDNN's kernels for x: float32 on a CPU."""
    return BY_ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x · weightᵀ + bias; x [..., K], weight [N, K], bias [N]. Differs from torch's result
    by at most 1e-6 of its range; small products use torch's own function.
    """
    if not by_onednn(x) or not _is_large(x.numel() // max(1, x.shape[-1]), weight):
        return F.linear(x, weight, bias)
    return _by_onednn(x, weight, bias)


def product(left: Tensor, right: Tensor, max_inner: int) -> Tensor:
    """Returns left · right of matrices [M, K] and [K, N]. Uses oneDNN as `linear` does, but not if
    K exceeds `max_inner`.
    """
    if len(right) > max_inner or not (by_onednn(left) and _is_large(len(left), right)):
        return torch.mm(left, right)
    return _by_onednn(left, right.t(), None)


def _by_onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    made: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return made


def _is_large(rows: int, weight: Tensor) -> bool:
    return rows >= MIN_ROWS and rows * weight.numel() >= MIN_MULTIPLICATIONS
