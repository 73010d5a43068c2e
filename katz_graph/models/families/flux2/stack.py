"""Computes FLUX.2 transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

Embeddings [B, 16 D] hold that of timestep and guidance [B, D], followed by the vectors that shift,
scale and gate tokens: of pictures and of texts in all double blocks [B, 6 D], and of the joint
sequence in all single blocks [B, 3 D].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from diffusers.models.transformers.transformer_flux2 import (
    Flux2KVAttnProcessor,
    Flux2KVParallelSelfAttnProcessor,
    Flux2TransformerBlock,
    _blend_double_block_mods,
    _blend_single_block_mods,
)
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.ir.values import TextEncoding
from katz_graph.models.families.flux2.architecture import SELF_ATTENDING
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    grid_ids,
    lacks_text,
    packed,
    unpacked,
)

TIME_FACTOR = 1000  # scales noise levels and guidance before embedding
BETWEEN_REFERENCES = 10  # positions from one picture to the next, on the first axis
MODULATIONS = 6, 6, 3  # vectors of each
REFERENCES_APART = 3  # place of vectors of timestep 0 among the fixed inputs


def side(module: Any) -> int:
    return 1


def blocks(module: Any) -> Sequence[nn.Module]:
    return [*module.transformer_blocks, *module.single_transformer_blocks]


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.context_embedder]
        case "embed":
            timestep = module.time_guidance_embed.timestep_embedder
            return [module.x_embedder, timestep, *_modulations(module)]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    tokens: Tensor = module.context_embedder(text.hidden)
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    """Returns the embedding of guidance, if the model takes it."""
    embedders, dtype = module.time_guidance_embed, text.hidden.dtype
    if embedders.guidance_embedder is None or text.guidance is None:
        return ()
    guidance = embedders.time_proj(text.guidance.to(dtype) * TIME_FACTOR)
    return (embedders.guidance_embedder(guidance.to(dtype)),)


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns cosines and sines of rotary positions [1, tokens + rows · columns, D]. Text tokens,
    with the pad tokens, are counted on the fourth axis. For references, appends their positions,
    and their tokens as a third tensor. If references attend to references only, a fourth tensor
    [B, 15 D] has the vectors of timestep 0 that modulate them.
    """
    device = module.x_embedder.weight.device
    text = torch.zeros(tokens, 4, dtype=torch.float64, device=device)
    text[:, 3] = torch.arange(tokens, device=device)
    sides = [(rows, columns), *(latent.shape[-2:] for latent in references.latents)]
    pictures = [
        pad(grid_ids(high, wide, device, first=number * BETWEEN_REFERENCES), (0, 1))
        for number, (high, wide) in enumerate(sides)
    ]
    cosines, sines = module.pos_embed(torch.cat([text, *pictures]))
    read = [module.x_embedder(packed(latent, 1)) for latent in references.latents]
    found = cosines[None], sines[None], *([torch.cat(read, dim=1)] if read else [])
    if not read or references.placing != SELF_ATTENDING:
        return found
    start = torch.zeros(len(read[0]), dtype=torch.float64, device=device)
    return *found, embedding(module, start, ())[:, module.inner_dim :]


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    embedders, dtype = module.time_guidance_embed, module.dtype
    # diffusers' pipelines round the timestep to the model's dtype, and then its quotient
    level = (timestep.float() * TIME_FACTOR).to(dtype) / TIME_FACTOR
    time = embedders.time_proj(level * TIME_FACTOR)
    result: Tensor = embedders.timestep_embedder(time.to(dtype))
    for vector in vectors:
        result = result + vector
    return torch.cat([result, *(one(result) for one in _modulations(module))], dim=-1)


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return torch.cat([module.x_embedder(packed(x, 1)), *fixed[2:3]], dim=1), context


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
    rotary, one = (fixed[0][0], fixed[1][0]), blocks(module)[number]
    width = module.inner_dim
    widths = [width * count for count in MODULATIONS]
    of_picture, of_text, joint = embedding[:, width:].split_with_sizes(widths, dim=1)
    if len(fixed) > REFERENCES_APART:
        still = fixed[REFERENCES_APART].split_with_sizes(widths, dim=1)
        return _apart(one, hidden, text, (of_picture, of_text, joint), still, fixed)
    if number < len(module.transformer_blocks):
        text, hidden = one(hidden, text, of_picture, of_text, rotary)
    else:
        text, hidden = one(hidden, text, joint, rotary, None, True)
    return hidden, text


def _apart(
    one: Any,
    hidden: Tensor,
    text: Tensor,
    moving: Sequence[Tensor],
    still: Sequence[Tensor],
    fixed: Fixed,
) -> tuple[Tensor, Tensor]:
    """Runs a block whose references attend to references only, with diffusers' attention for that,
    which takes them between text and picture.
    """
    words, count = text.shape[1], fixed[2].shape[1]
    tokens = torch.cat([hidden[:, -count:], hidden[:, :-count]], dim=1)
    rotary = tuple(
        torch.cat([part[0, :words], part[0, -count:], part[0, words:-count]]) for part in fixed[:2]
    )
    options = {"kv_cache_mode": "extract", "num_ref_tokens": count}
    if isinstance(one, Flux2TransformerBlock):
        one.attn.processor = Flux2KVAttnProcessor()
        vectors = _blend_double_block_mods(moving[0], still[0], count, tokens.shape[1])
        text, tokens = one(tokens, text, vectors, moving[1], rotary, options)
    else:
        one.attn.processor = Flux2KVParallelSelfAttnProcessor()
        whole = words + tokens.shape[1]
        vectors = _blend_single_block_mods(moving[2], still[2], words, count, whole)
        options["num_txt_tokens"] = words
        text, tokens = one(tokens, text, vectors, rotary, options, True)
    return torch.cat([tokens[:, count:], tokens[:, :count]], dim=1), text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    picture = hidden[:, : rows * columns]  # reference tokens follow
    normed = module.norm_out(picture, embedding[:, : module.inner_dim])
    return unpacked(module.proj_out(normed), rows, columns, 1)


def _modulations(module: Any) -> Sequence[nn.Module]:
    return (
        module.double_stream_modulation_img,
        module.double_stream_modulation_txt,
        module.single_stream_modulation,
    )
