"""Embeds timestep, and SDXL's pooled text and picture sizes, as the vector that a UNet's or
ControlNet's blocks read.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.ir.values import TextEncoding
from katz_graph.models.active import Layers
from katz_graph.models.families.shared.compute import UNPOOLED

REFINER_NUMBERS = 5


def step_embedding(
    module: Any, sample: Tensor, timestep: Tensor, text: TextEncoding, added: Tensor | None = None
) -> Tensor:
    """Returns the embedding [B, E] for a model input [B, C, h, w] and timesteps [B]. Computes
    `added_embedding` unless `added` is given.
    """
    embedding: Tensor = module.time_embedding(module.time_proj(timestep.float()).to(sample.dtype))
    added = added_embedding(module, text) if added is None else added
    return embedding if added is None else embedding + added


def added_embedding(module: Any, text: TextEncoding) -> Tensor | None:
    """Returns SDXL's embedding [B, E] of pooled text and picture sizes, constant over the steps;
    None for models without it.
    """
    if module.config.addition_embed_type is None:
        return None
    if text.pooled is None or text.sizes is None:
        raise InputError(UNPOOLED)
    numbers = _numbers(module, text.sizes, text.pooled.shape[1])
    sizes = module.add_time_proj(numbers.flatten()).reshape(text.pooled.shape[0], -1)
    result: Tensor = module.add_embedding(
        torch.cat([text.pooled, sizes], dim=-1).to(text.hidden.dtype)
    )
    return result


def _numbers(module: Any, sizes: Tensor, pooled_width: int) -> Tensor:
    """Selects a model's columns of sizes [B, 7]: SDXL takes the first six, its refiner the original
    size, the crop and the aesthetic score.
    """
    taken = (
        module.add_embedding.linear_1.in_features - pooled_width
    ) // module.config.addition_time_embed_dim
    return sizes[:, [0, 1, 2, 3, 6]] if taken == REFINER_NUMBERS else sizes[:, :6]


def conditioned(text: TextEncoding, cached: Any, layers: Layers | None = None) -> dict[str, Any]:
    """Returns the arguments of blocks with cross-attention: the text, its cached keys and values,
    and what the layers read from a template.
    """
    options = {name: one for name, one in (("cached", cached), ("layers", layers)) if one}
    return {"encoder_hidden_states": text.hidden, "cross_attention_kwargs": options or None}
