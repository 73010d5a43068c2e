"""Makes the first call of each GPU library, which creates its handles and loads its kernels."""

from __future__ import annotations

import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from katz_graph.kernels.attention import attention_order
from katz_graph.kernels.dispatch import uses_kernels

WIDTH, SIDE = 64, 8


@torch.inference_mode()
def first_calls(device: torch.device, dtype: torch.dtype) -> None:
    """Calls cuDNN, cuBLAS, attention and Triton on small tensors, on the current stream."""
    picture = torch.ones(1, WIDTH, SIDE, SIDE, device=device, dtype=dtype)
    picture = picture.to(memory_format=torch.channels_last)
    torch.conv2d(picture, picture.new_ones(WIDTH, WIDTH, 3, 3), padding=1)
    rows = picture.new_ones(WIDTH, WIDTH)
    linear(rows, rows, rows[0])
    with attention_order(device):
        heads = picture.new_ones(1, 1, WIDTH, WIDTH)
        scaled_dot_product_attention(heads, heads, heads)
    uses_kernels(picture)  # runs a test kernel
