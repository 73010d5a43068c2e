"""Computes attention by the libraries' kernels, in the order in which they are fast on a device."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

HOPPER = 9  # the major number of its compute capability
ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns softmax(query · keyᵀ / √width) · value, all [B, heads, tokens, width].

    On Hopper by cuDNN where it can, whose forward reaches 373 to 408 TFLOP/s at width 64 where
    FlashAttention 2, torch's first choice, reaches 306 to 321 (FlashAttention-3, figure 5);
    elsewhere as torch chooses.
    """
    chosen = (
        sdpa_kernel(ORDER, set_priority=True) if _prefers_cudnn(query.device) else nullcontext()
    )
    with chosen:
        return F.scaled_dot_product_attention(query, key, value)


@cache
def _prefers_cudnn(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
