"""Chooses among the libraries' kernels for attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HOPPER = 9  # the major number of its compute capability
ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention_order(device: torch.device) -> AbstractContextManager[object]:
    """Has torch try its libraries of attention, inside of the `with` statement, in the order in
    which they are fast on a device.

    On Hopper cuDNN where it can, whose forward reaches 373 to 408 TFLOP/s at width 64 where
    FlashAttention 2, torch's first choice, reaches 306 to 321 (FlashAttention-3, figure 5);
    elsewhere as torch chooses. cuDNN prepares itself for each new size, which takes longer than one
    call: for what is computed once that does not pay.
    """
    return sdpa_kernel(ORDER, set_priority=True) if _prefers_cudnn(device) else nullcontext()


@cache
def _prefers_cudnn(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
