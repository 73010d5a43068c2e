"""Computes Qwen-Image 2.1 transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

The sequence is causal: text, with each reference at the place of its vision tokens, then the
picture. Text and references are modulated with timestep 0. Embeddings [B, 10D] hold the embedding
of the timestep, that of timestep 0, and the modulations of both.

The fixed inputs are the rotary positions, and one tensor for each segment before the picture: of a
text its mask [1, 1, T, S], of a reference its tokens [B, N, D].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from katz_graph.core.errors import InputError
from katz_graph.ir.values import TextEncoding
from katz_graph.kernels.modulated_norm import modulated_norm
from katz_graph.models.families.qwen_image_21.architecture import SLOT, THETA
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    KeysValues,
    ReferenceTokens,
    grid_ids,
    lacks_text,
    packed,
    unpacked,
)
from katz_graph.models.prepared.qwen_image_21 import (
    Part,
    Segment,
    block_tokens,
    keys_values,
)

MASK_AXES = 4  # of a text's mask; tokens of a reference have three


def side(module: Any) -> int:
    return 1


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.transformer_blocks)


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.txt_in]
        case "embed":
            return [module.img_in, module.time_text_embed, module.modulation]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    tokens: Tensor = module.txt_in(text.hidden)
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns the rotary positions [1, S, D / 2, 2]: real, imaginary; and the segments before the
    picture.

    References are centred on the picture, as in ComfyUI: diffusers centres each picture by itself,
    which differs by half a cell if only one of two sides is odd.
    """
    place = "meta" if module.device.type == "meta" else "cpu"  # as diffusers does
    picture = torch.tensor([0, rows // 2 - rows, columns // 2 - columns], device=place)
    ids, found, position, end = [], [], 0, 0
    for start, stop, latent in _segments(tokens, references):
        if latent is None:
            count = stop - start
            span = torch.arange(position, position + count, dtype=torch.float64, device=place)
            ids.append(span[:, None].expand(count, 3))
            seen = torch.ones(1, 1, count, end + count, dtype=torch.bool, device=module.device)
            found.append(seen.tril(end))
            position += count
        else:
            high, wide = latent.shape[-2:]
            corner = torch.tensor([0, (rows - high) / 2, (columns - wide) / 2], device=place)
            ids.append(grid_ids(high, wide, place, first=position) + picture + corner)
            found.append(module.img_in(packed(latent, side=1)))
            count = high * wide
            position += max(high, wide)
        end += count
    ids.append(grid_ids(rows, columns, place, first=position) + picture)
    turns = _frequencies(module, torch.cat(ids)).to(module.device)
    return (torch.view_as_real(turns)[None], *found)


def _segments(tokens: int, references: ReferenceTokens) -> Iterator[tuple[int, int, Tensor | None]]:
    """Yields the first and last (exclusive) token of each text, and the reference of each place
    between them. References without vision tokens stand behind the text. Raises InputError if the
    numbers of tokens differ.
    """
    slots = references.slots if references.latents else ()
    wanted = sum(one.shape[-2] * one.shape[-1] for one in references.latents)
    if slots and wanted != SLOT * len(slots):
        raise InputError(
            f"the references have {wanted} cells, the {len(slots)} vision tokens of the prompt "
            f"stand for {SLOT * len(slots)}: use the references of the node that encoded the prompt"
        )
    start = number = 0
    for latent in references.latents:
        count = latent.shape[-2] * latent.shape[-1] // SLOT
        stop = slots[number] if slots else tokens
        if stop > start:
            yield start, stop, None
        yield stop, stop, latent
        start, number = (stop + count, number + count) if slots else (tokens, 0)
    if tokens > start:
        yield start, tokens, None


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    now = timestep.float().to(module.dtype)
    embedded = module.time_text_embed(torch.cat([now, now.new_zeros(1)]), module.proj_out.weight)
    rows = torch.cat([embedded, module.modulation(embedded)], dim=-1)
    moving, still = rows[:-1], rows[-1:].expand(len(now), -1)
    width = embedded.shape[-1]
    return torch.cat(
        [moving[:, :width], still[:, :width], moving[:, width:], still[:, width:]], dim=-1
    )


def embed(
    module: Any, x: Tensor, context: Tensor | None, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    text = None if context is None else before(context, fixed)
    return module.img_in(packed(x, side=1)), text


def before(context: Tensor, fixed: Fixed) -> Tensor:
    """Returns the tokens [B, P, D] before the picture: text, and references at their places."""
    texts = [one.shape[2] for one in fixed[1:] if one.ndim == MASK_AXES]
    in_slots = context.shape[1] > sum(texts)
    found, place = [], 0
    for one in fixed[1:]:
        if one.ndim == MASK_AXES:
            found.append(context[:, place : place + one.shape[2]])
            place += one.shape[2]
        else:
            found.append(one)
            place += one.shape[1] // SLOT if in_slots else 0
    return torch.cat(found, dim=1) if found else context


def prefix(
    module: Any, numbers: range, tokens: Tensor, fixed: Fixed
) -> tuple[Tensor, tuple[KeysValues, ...]]:
    time = torch.zeros(len(tokens), dtype=torch.float64, device=tokens.device)
    still = _vectors(embedding(module, time, ()))[1]
    turns, segments, found = fixed[0][:1, : tokens.shape[1]], _masks(fixed), []
    for number in numbers:
        one = module.transformer_blocks[number]
        if number == len(module.transformer_blocks) - 1:  # nothing reads the tokens behind it
            key, value = keys_values(one, Part(tokens, still), turns)
        else:
            (tokens,), (key, value) = block_tokens(one, [Part(tokens, still)], turns, segments)
        found.append((key, value))
    return tokens, tuple(found)


def block(
    module: Any,
    number: int,
    hidden: Tensor,
    text: Tensor | None,
    embedding: Tensor,
    fixed: Fixed,
    *,
    prefix: KeysValues | None = None,
) -> tuple[Tensor, Tensor | None]:
    one, (moving, still) = module.transformer_blocks[number], _vectors(embedding)
    turns, count = fixed[0][:1], hidden.shape[1]
    if prefix is not None:
        start, picture = turns.shape[1] - count, [Part(hidden, moving)]
        stored = [_expanded(part, len(hidden)) for part in prefix]
        (hidden,), _ = block_tokens(one, picture, turns[:, start:], [Segment(0, count)], stored)
        return hidden, None
    if text is None:
        raise lacks_text(number)
    start = text.shape[1]
    every = [*_masks(fixed), Segment(start, start + count)]
    (text, hidden), _ = block_tokens(one, [Part(text, still), Part(hidden, moving)], turns, every)
    return hidden, text


def _vectors(embedding: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Returns the modulations [B, D] of the timestep and of timestep 0."""
    parts = embedding.chunk(10, dim=-1)
    return parts[2:6], parts[6:]


def _expanded(part: Tensor, rows: int) -> Tensor:
    """Returns each row as often as there are pictures of it; without a copy if there is one row."""
    if len(part) in (1, rows):
        return part.expand(rows, *part.shape[1:])
    return part.repeat_interleave(rows // len(part), dim=0)


def _masks(fixed: Fixed) -> list[Segment]:
    """Returns the segments before the picture."""
    found, start = [], 0
    for one in fixed[1:]:
        mask = one[:1] if one.ndim == MASK_AXES else None
        count = one.shape[1] if mask is None else one.shape[2]
        found.append(Segment(start, start + count, mask))
        start += count
    return found


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    norm, width = module.norm_out, hidden.shape[-1]
    # one product with timestep 0, as in the library: libraries choose the order of sums by size
    both = torch.cat([embedding[:, :width], embedding[:1, width : 2 * width]])
    scale = norm.linear(norm.silu(both))[:-1]
    (normalised,) = modulated_norm(hidden, [(scale, torch.zeros_like(scale))], norm.norm.eps)
    return unpacked(module.proj_out(normalised), rows, columns, side=1)


def _frequencies(module: Any, ids: Tensor) -> Tensor:
    """Returns rotary positions [S, D / 2] complex64 of ids [S, 3]: order, row, column."""
    found = []
    for axis, width in enumerate(module.config.axes_dims_rope):
        steps = torch.arange(0, width, 2, device=ids.device).float().div(width)
        angles = torch.outer(ids[:, axis].float(), 1.0 / torch.pow(THETA, steps))
        found.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(found, dim=-1)
