"""Products of processors on which torch's BLAS library lags behind oneDNN, which torch has too."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

FEWEST_ROWS = 16  # of a product: with fewer, the library is faster
LEAST = 1 << 20  # multiplications of a product: with fewer, oneDNN takes longer to begin
FULL_AVX512 = 26  # the first family of AMD's processors whose AVX-512 units are 512 bits wide
CPUINFO = Path("/proc/cpuinfo")
LIBRARY_ONLY = "KATZ_LIBRARY_PRODUCTS"
"""Names the environment variable that has layers compute as torch does, bit for bit, where 1."""


def lags(cpuinfo: str) -> bool:
    """Returns whether the BLAS library of torch's builds computes with half of a processor's width:
    MKL takes its AVX2 path on processors that are not Intel's. `cpuinfo`: as Linux describes it.
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
"""Whether products of this machine's processors go to oneDNN. Decided by the hardware, so that all
processes of a machine round alike."""


def by_onednn(x: Tensor) -> bool:
    """Returns whether layers compute with x by oneDNN's kernels: float32 on a processor."""
    return BY_ONEDNN and x.dtype == torch.float32 and x.device.type == "cpu"


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Returns x · weightᵀ + bias; x [..., K], weight [N, K], bias [N]. Within 1e-6 of the range of
    what torch computes; small products are torch's own.
    """
    if not by_onednn(x) or not _is_large(x.numel() // max(1, x.shape[-1]), weight):
        return F.linear(x, weight, bias)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _is_large(rows: int, weight: Tensor) -> bool:
    return rows >= FEWEST_ROWS and rows * weight.numel() >= LEAST
