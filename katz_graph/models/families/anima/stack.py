"""Computes Anima's networks in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

Picture tokens attend to each other and then to the text, which stays the same in all blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    lacks_text,
    unpatched,
)

SIDE = 2


def side(module: Any) -> int:
    return SIDE


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.transformer_blocks)


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.llm_adapter]
        case "embed":
            return [module.patch_embed, module.time_embed]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Returns a row for each of T5's words, times the word's weight, which attends to the language
    model's states; zeros after the last word. A text without words is read as it is.
    """
    if text.words is None:
        return text.hidden
    numbers, weights = text.words.unbind(-1)
    rows: Tensor = module.llm_adapter(
        text.hidden, numbers.clamp(min=0).long(), target_attention_mask=numbers >= 0
    )
    return rows * weights[..., None].to(rows.dtype)


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns cosines and sines of rotary positions [1, N, D]."""
    like = torch.empty(1, 0, 1, rows * SIDE, columns * SIDE, device=module.proj_out.weight.device)
    cosines, sines = module.rope(like, fps=None)
    return cosines[None], sines[None]


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    """Returns what the blocks' modulations add [B, 3 C], then the embedding [B, C]."""
    like = module.proj_out.weight  # only its dtype is read
    return torch.cat(module.time_embed(like, timestep.float()), dim=-1)


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    masked = F.pad(x, (0, 0, 0, 0, 0, 1))[:, :, None]  # one channel of zeros; one frame
    return module.patch_embed(masked).flatten(1, 3), context


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
    added, time = _split(module, embedding)
    rotary = cosines[0], sines[0]
    return module.transformer_blocks[number](hidden, text, time, added, rotary), text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    added, time = _split(module, embedding)
    tokens = module.proj_out(module.norm_out(hidden, time, added))
    return unpatched(tokens, rows, columns, SIDE)


def _split(module: Any, embedding: Tensor) -> tuple[Tensor, Tensor]:
    width = module.proj_out.in_features
    return embedding[:, :-width], embedding[:, -width:]
