"""Computes a transformer of FLUX.1 in parts, on diffusers' modules; each function as
`families.shared.transformer.Stack` has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.shared.transformer import (
    Fixed,
    grid_ids,
    lacks_text,
    packed,
    unpacked,
)

TIME_FACTOR = 1000  # between noise levels, or guidance, and what is embedded


def side(module: Any) -> int:
    return 2


def blocks(module: Any) -> Sequence[nn.Module]:
    return [*module.transformer_blocks, *module.single_transformer_blocks]


def parts(module: Any) -> Mapping[str, Sequence[nn.Module]]:
    return {
        "context": [module.context_embedder],
        "embed": [module.x_embedder, module.time_text_embed.timestep_embedder],
        "head": [module.norm_out, module.proj_out],
    }


def context(module: Any, text: TextEncoding) -> Tensor:
    tokens: Tensor = module.context_embedder(text.hidden)
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    """Returns the embeddings of the guidance, where the model is told any, and the pooled text."""
    assert text.pooled is not None  # as its architecture has it
    embedders = module.time_text_embed
    pooled = embedders.text_embedder(text.pooled)
    if not module.config.guidance_embeds or text.guidance is None:
        return (pooled,)
    guidance = embedders.time_proj(text.guidance.to(pooled.dtype) * TIME_FACTOR)
    return embedders.guidance_embedder(guidance.to(pooled.dtype)), pooled


def fixed(module: Any, rows: int, columns: int, tokens: int) -> Fixed:
    """Returns the cosines and sines of rotary positions, [1, tokens + rows · columns, D] each; all
    of a text stand at 0.
    """
    device = module.x_embedder.weight.device
    text = torch.zeros(tokens, 3, dtype=torch.float64, device=device)
    cosines, sines = module.pos_embed(torch.cat([text, grid_ids(rows, columns, device)]))
    return cosines[None], sines[None]


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    embedders, dtype = module.time_text_embed, vectors[0].dtype
    time = embedders.time_proj(timestep.float().to(dtype) * TIME_FACTOR)
    result: Tensor = embedders.timestep_embedder(time.to(dtype))
    for vector in vectors:
        result = result + vector
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return module.x_embedder(packed(x)), context


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None]:
    if text is None:
        raise lacks_text(number)
    cosines, sines = fixed
    text, hidden = blocks(module)[number](hidden, text, embedding, (cosines[0], sines[0]))
    return hidden, text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    return unpacked(module.proj_out(module.norm_out(hidden, embedding)), rows, columns)
