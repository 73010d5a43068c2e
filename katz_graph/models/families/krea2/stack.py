"""Computes Krea 2 transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

References, text and picture tokens form one sequence, in this order. References have the modulation
of timestep 0, which is computed once per request.
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
    grid_ids,
    packed,
    padded,
    unpacked,
)


def side(module: Any) -> int:
    return 2


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.transformer_blocks)


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.text_fusion, module.txt_in]
        case "embed":
            return [module.img_in, module.time_embed, module.time_mod_proj]
        case _:
            return [module.final_layer]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Fuses the states of the text encoder, side by side in the text's channels."""
    states = torch.unflatten(text.hidden, -1, (module.config.num_text_layers, -1))
    tokens: Tensor = module.txt_in(module.text_fusion(states))
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns cosines and sines of rotary positions [1, S, D], with all text tokens at 0. For
    references, also their tokens [B, R, C], and their modulation [B, 6 C].
    """
    device = module.img_in.weight.device
    latents = [padded(latent, side(module)) for latent in references.latents]
    grids = [(one.shape[-2] // side(module), one.shape[-1] // side(module)) for one in latents]
    ids = [
        *(grid_ids(*grid, device, first=plane) for plane, grid in enumerate(grids, start=1)),
        torch.zeros(tokens, 3, dtype=torch.float64, device=device),
        grid_ids(rows, columns, device),
    ]
    cosines, sines = (one[None] for one in module.rotary_emb(torch.cat(ids)))
    if not latents:
        return cosines, sines
    read = torch.cat([module.img_in(packed(latent)) for latent in latents], dim=1)
    still = embedding(module, read.new_zeros(len(read)), ())
    return cosines, sines, read, still[:, : -module.hidden_size]


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    """Returns the modulation of the blocks [B, 6 C], then the embedding [B, C] that it is of."""
    level = timestep.float().to(module.dtype)  # as diffusers' pipeline rounds it
    time = module.time_embed(level, dtype=module.dtype)
    modulation = module.time_mod_proj(F.gelu(time, approximate="tanh"))
    return torch.cat([modulation, time], dim=-1).squeeze(1)


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return torch.cat([*fixed[2:3], context, module.img_in(packed(x))], dim=1), None


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None]:
    cosines, sines, *references = fixed
    rotary = cosines[0], sines[0]
    modulation = embedding[:, None, : -module.hidden_size]
    one = module.transformer_blocks[number]
    if not references:
        return one(hidden, modulation, rotary), None
    read, still = references
    return _with_references(one, hidden, read.shape[1], (still[:, None], modulation), rotary), None


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    picture = hidden[:, -rows * columns :]  # the last tokens
    time = embedding[:, None, -module.hidden_size :]
    return unpacked(module.final_layer(picture, time), rows, columns)


def _with_references(
    block: Any,
    hidden: Tensor,
    count: int,
    modulations: Sequence[Tensor],
    rotary: tuple[Tensor, Tensor],
) -> Tensor:
    """Runs a block on tokens [B, N, C], the first `count` of which have the first modulation
    [B, 1, 6 C], the others the second. A modulation of each token would take six times the memory
    of the tokens.
    """
    table = block.scale_shift_table
    both = [(torch.unflatten(one, -1, (6, -1)) + table).unbind(-2) for one in modulations]

    def scaled(norm: Any, first: int) -> Tensor:
        """Normalises tokens, and scales and shifts them by the vectors from `first` on."""
        normed = norm(hidden).tensor_split([count], dim=1)
        return torch.cat(
            [
                (1.0 + vectors[first]) * part + vectors[first + 1]
                for part, vectors in zip(normed, both, strict=True)
            ],
            dim=1,
        )

    def gated(made: Tensor, number: int) -> Tensor:
        parts = made.tensor_split([count], dim=1)
        gates = [vectors[number] * part for part, vectors in zip(parts, both, strict=True)]
        return hidden + torch.cat(gates, dim=1)

    hidden = gated(block.attn(scaled(block.norm1, 0), image_rotary_emb=rotary), 2)
    return gated(block.ff(scaled(block.norm2, 3)), 5)
