"""Chooses among torch's attention backends."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HOPPER = 9  # major compute capability
ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def attention_order(device: torch.device) -> AbstractContextManager[object]:
    """Makes torch try its attention backends in order of their speed on a device, inside the `with`
    statement.

    On Hopper cuDNN comes first: its forward pass reaches 373 to 408 TFLOP/s at width 64, and
    FlashAttention 2, torch's first choice, reaches 306 to 321 (FlashAttention-3, figure 5). Other
    devices keep torch's order. For each new size cuDNN's initialization takes longer than one call,
    so it is slower for sizes computed only once.
    """
    return sdpa_kernel(ORDER, set_priority=True) if _prefers_cudnn(device) else nullcontext()


@cache
def _prefers_cudnn(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
