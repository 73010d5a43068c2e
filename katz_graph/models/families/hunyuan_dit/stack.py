"""Computes HunyuanDiT transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

The text's hidden state holds BERT's tokens, then mT5's, zero-padded to equal width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.models.embeddings import get_2d_rotary_pos_embed
from torch import Tensor, nn

from katz_graph.core.errors import InputError
from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    lacks_text,
    padded,
    unpatched,
)

BASE_CELLS = 64  # positions along the longer side of a picture
SIZE_ORDER = [0, 1, 4, 5, 2, 3]  # columns of `TextEncoding.sizes`: original, target, crop


def side(module: Any) -> int:
    return int(module.config.patch_size)


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.blocks)


def skips(module: Any) -> Mapping[int, int]:
    """Maps each block of the second half, except its first, to its mirror in the first half."""
    count = len(module.blocks)
    return {number: count - 1 - number for number in range(count // 2 + 1, count)}


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.text_embedder]
        case "embed":
            return [module.pos_embed.proj, module.time_extra_emb.timestep_embedder]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Returns the tokens of both encoders in one width, with learned padding for masked tokens."""
    padding = module.text_embedding_padding
    first, width = module.config.text_len, padding.shape[1]
    long = _of_mt5(module, text)
    long_text = module.text_embedder(long.flatten(0, 1)).reshape(*long.shape[:2], width)
    rows = torch.cat([text.hidden[:, :first, :width], long_text], dim=1)
    if text.mask is None:
        return rows
    return torch.where(text.mask.bool()[..., None], rows, padding)


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    """Embeds mT5's text, including masked tokens. Versions before 1.2 add picture sizes and a
    style.
    """
    embedders = module.time_extra_emb
    long_text = [embedders.pooler(_of_mt5(module, text))]
    if module.config.use_style_cond_and_image_meta_size:
        if text.sizes is None:  # in an explicit region
            raise InputError(
                "the model reads the picture's sizes, the conditioning has none: encode the text "
                "with CLIPTextEncodeSDXL"
            )
        numbers = embedders.size_proj(text.sizes[:, SIZE_ORDER].reshape(-1))
        long_text.append(numbers.to(long_text[0].dtype).reshape(len(text.sizes), -1))
        style = torch.zeros(len(text.sizes), dtype=torch.long, device=text.sizes.device)
        long_text.append(embedders.style_embedder(style))
    return (embedders.extra_embedder(torch.cat(long_text, dim=1)),)


def unshifted(values: Mapping[str, Any]) -> bool:
    return False


def hint(module: Any, reference: Tensor) -> Tensor:
    tokens: Tensor = module.input_block(module.pos_embed(padded(reference, side(module))))
    return tokens


def residual(module: Any, number: int, hidden: Tensor) -> Tensor:
    found: Tensor = module.controlnet_blocks[number](hidden)
    return found


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns cosines and sines of rotary positions, [1, rows · columns, D] each."""
    base = BASE_CELLS // side(module)
    found = get_2d_rotary_pos_embed(
        module.config.attention_head_dim,
        _spread(rows, columns, base),
        (rows, columns),
        device=module.pos_embed.proj.weight.device,
    )
    cosines, sines = found
    return cosines[None], sines[None]


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    (long_text,) = vectors
    embedders = module.time_extra_emb
    time = embedders.time_proj(timestep.float())
    result: Tensor = embedders.timestep_embedder(time.to(long_text.dtype)) + long_text
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return module.pos_embed(x), context


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
    skip: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Runs one block; the text tokens do not change."""
    if text is None:
        raise lacks_text(number)
    cosines, sines = fixed
    return module.blocks[number](hidden, text, embedding, (cosines[0], sines[0]), skip), text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    """Returns the prediction; drops the other half of the channels, an unused variance."""
    tokens: Tensor = module.proj_out(module.norm_out(hidden, embedding.float()))
    whole = unpatched(tokens, rows, columns, side(module))
    return whole[:, : module.config.in_channels]


def _of_mt5(module: Any, text: TextEncoding) -> Tensor:
    """Returns the hidden state of mT5. Raises InputError if the text's length differs from the
    model's.
    """
    count, wanted = text.hidden.shape[1], len(module.text_embedding_padding)
    if count != wanted:
        raise InputError(
            f"the model reads a text of {wanted} tokens, the conditioning has {count}: joined "
            "conditionings are not supported"
        )
    width = module.config.cross_attention_dim_t5
    return text.hidden[:, module.config.text_len :, :width]


def _spread(rows: int, columns: int, base: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns (first, last) positions down and across. The longer side spans `base` positions; the
    shorter side is centred.
    """
    longer = max(rows, columns)
    sizes = [round(base / longer * count) for count in (rows, columns)]
    starts = [round((base - size) / 2.0) for size in sizes]
    (top, left), (height, width) = starts, sizes
    return (top, left), (top + height, left + width)
