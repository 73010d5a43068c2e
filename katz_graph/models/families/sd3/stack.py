"""Computes a transformer of Stable Diffusion 3 in parts: what does not depend on the step, the
tokens, one block, and the prediction. On diffusers' modules, bit-equal to their `forward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def context(module: Any, hidden: Tensor) -> Tensor:
    """Returns the text's tokens [B, T, D] of a text [B, T, W], filled up with zeros to the width
    that the transformer takes.
    """
    missing = module.config.joint_attention_dim - hidden.shape[-1]
    tokens: Tensor = module.context_embedder(pad(hidden, (0, missing)))
    return tokens


def pooled(module: Any, vector: Tensor) -> Tensor:
    """Returns the embedding [B, D] of a pooled text [B, P]."""
    embedding: Tensor = module.time_text_embed.text_embedder(vector)
    return embedding


def position(module: Any, rows: int, columns: int) -> Tensor:
    """Returns the middle of the table of positions [1, rows · columns, D]."""
    side = module.pos_embed.pos_embed_max_size
    table = module.pos_embed.pos_embed.reshape(1, side, side, -1)
    top, left = (side - rows) // 2, (side - columns) // 2
    part: Tensor = table[:, top : top + rows, left : left + columns]
    return part.reshape(1, rows * columns, -1)


def embed(module: Any, x: Tensor, position: Tensor) -> Tensor:
    """Returns the picture's tokens [B, N, D] of a model input [B, C, h, w]."""
    patches: Tensor = module.pos_embed.proj(x).flatten(2).transpose(1, 2)
    return (patches + position).to(patches.dtype).contiguous()


def embedding(module: Any, timestep: Tensor, pooled: Tensor) -> Tensor:
    """Returns the embedding [B, D] of timesteps [B] and the pooled text's [B, D]."""
    time = module.time_text_embed.time_proj(timestep.float())
    result: Tensor = module.time_text_embed.timestep_embedder(time.to(pooled.dtype)) + pooled
    return result


def block(
    module: Any, number: int, hidden: Tensor, text: Tensor | None, embedding: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Runs one block: picture's and text's tokens, which end with the last block."""
    text, hidden = module.transformer_blocks[number](hidden, text, embedding)
    return hidden, text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    """Returns the prediction [B, C, rows · patch, columns · patch]."""
    side, channels = module.config.patch_size, module.out_channels
    patches: Tensor = module.proj_out(module.norm_out(hidden, embedding))
    patches = patches.reshape(len(hidden), rows, columns, side, side, channels)
    return torch.einsum("nhwpqc->nchpwq", patches).reshape(
        len(hidden), channels, rows * side, columns * side
    )
