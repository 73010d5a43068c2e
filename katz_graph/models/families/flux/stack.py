"""Computes FLUX.1 transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.ir.values import TextEncoding
from katz_graph.models.active import Active
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    grid_ids,
    lacks_text,
    packed,
    padded,
    placed,
    unpacked,
)

TIME_FACTOR = 1000  # scales noise levels and guidance before embedding


def side(module: Any) -> int:
    return 2


def blocks(module: Any) -> Sequence[nn.Module]:
    return [*module.transformer_blocks, *module.single_transformer_blocks]


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.context_embedder]
        case "embed":
            return [module.x_embedder, module.time_text_embed.timestep_embedder]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    tokens: Tensor = module.context_embedder(text.hidden)
    if not kinds:
        return tokens
    learned = module.controlnet_mode_embedder.weight
    # row by row: an index tensor would be copied from the host
    rows = torch.stack([learned[kind] for kind in kinds])
    return torch.cat([rows.expand(len(tokens), -1, -1), tokens], dim=1)


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    """Returns the embeddings of guidance, if the model takes it, and of the pooled text."""
    assert text.pooled is not None  # the architecture requires it
    embedders = module.time_text_embed
    pooled = embedders.text_embedder(text.pooled)
    if not module.config.guidance_embeds or text.guidance is None:
        return (pooled,)
    guidance = embedders.time_proj(text.guidance.to(pooled.dtype) * TIME_FACTOR)
    return embedders.guidance_embedder(guidance.to(pooled.dtype)), pooled


def unshifted(values: Mapping[str, Any]) -> bool:
    return False


def hint(module: Any, reference: Tensor) -> Tensor:
    """Embeds the reference; pixels are first downscaled to the latent's size by convolutions."""
    if module.input_hint_block is not None:
        reference = module.input_hint_block(reference)
    tokens: Tensor = module.controlnet_x_embedder(packed(padded(reference, side(module))))
    return tokens


def residual(module: Any, number: int, hidden: Tensor) -> Tensor:
    double = len(module.controlnet_blocks)
    blocks = module.controlnet_blocks if number < double else module.controlnet_single_blocks
    found: Tensor = blocks[number if number < double else number - double](hidden)
    return found


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns cosines and sines of rotary positions [1, tokens + rows · columns, D], with all text
    tokens at 0. For references, appends their positions, and their tokens as a third tensor.
    """
    device = module.x_embedder.weight.device
    text = torch.zeros(tokens, 3, dtype=torch.float64, device=device)
    latents = [padded(latent, side(module)) for latent in references.latents]
    others = [
        grid_ids(*patches, device) + torch.tensor(place, dtype=torch.float64, device=device)
        for patches, place in placed(latents, rows, columns, references.placing)
    ]
    cosines, sines = module.pos_embed(torch.cat([text, grid_ids(rows, columns, device), *others]))
    read = [module.x_embedder(packed(latent)) for latent in latents]
    return cosines[None], sines[None], *([torch.cat(read, dim=1)] if read else [])


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    embedders, dtype = module.time_text_embed, vectors[0].dtype
    # diffusers' pipelines round the timestep to the model's dtype, and then its quotient
    level = (timestep.float() * TIME_FACTOR).to(dtype) / TIME_FACTOR
    time = embedders.time_proj(level * TIME_FACTOR)
    result: Tensor = embedders.timestep_embedder(time.to(dtype))
    for vector in vectors:
        result = result + vector
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return torch.cat([module.x_embedder(packed(x)), *fixed[2:]], dim=1), context


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
    *,
    active: Active | None = None,
) -> tuple[Tensor, Tensor | None]:
    if text is None:
        raise lacks_text(number)
    cosines, sines, *_ = fixed
    options = {} if active is None else {"active": active}
    rotary = cosines[0], sines[0]
    text, hidden = blocks(module)[number](hidden, text, embedding, rotary, **options)
    return hidden, text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    picture = hidden[:, : rows * columns]  # reference tokens follow
    return unpacked(module.proj_out(module.norm_out(picture, embedding)), rows, columns)
