"""Decides once per process whether to compute with Triton kernels or their plain references."""

from __future__ import annotations

import os
import warnings
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether kernels are interpreted on a CPU, for tests. Triton reads the same variable when a kernel
is defined.
"""

COMPILED_FOR: ContextVar[int | None] = ContextVar("COMPILED_FOR", default=None)
"""Holds the architecture, such as 90 for sm90, for which calls with meta tensors compile kernels.
None: such calls use the plain references.
"""


def uses_kernels(tensor: Tensor) -> bool:
    """Returns whether kernels compute on this tensor's device."""
    if tensor.is_meta:
        return COMPILED_FOR.get() is not None
    return (tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")) and _works()


@cache
def _works() -> bool:
    """Runs a test kernel; warns once if Triton is missing or broken."""
    try:
        from katz_graph.kernels.triton.probe import probe

        place = "cpu" if INTERPRETED else "cuda"
        works = bool((probe(torch.ones(8, device=place)) == 2).all())
        why = "a kernel gave a wrong result"
    except Exception as error:
        works, why = False, f"{type(error).__name__}: {error}".splitlines()[0]
    if not works:
        warnings.warn(
            f"Triton does not work ({why}): slower operations of torch are used", stacklevel=3
        )
    return works
