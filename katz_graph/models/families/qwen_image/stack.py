"""Computes Qwen-Image transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.

Embeddings [B, 2E] hold that of the timestep and that of timestep 0, which references may have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.ir.values import TextEncoding, Tokens
from katz_graph.models.active import Active
from katz_graph.models.families.qwen_image.architecture import BEHIND, STILL, THETA
from katz_graph.models.families.qwen_image.fun_control import QwenImageFunControlNetModel
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
from katz_graph.models.prepared.qwen_image import block_tokens


def side(module: Any) -> int:
    return int(module.config.patch_size)


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(_chain(module))


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.txt_norm, module.txt_in]
        case "embed":
            return [module.img_in, module.time_text_embed]
        case "control":
            return [module.control_blocks[0].before_proj]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    tokens: Tensor = module.txt_in(module.txt_norm(text.hidden))
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    return ()


def fixed(
    module: Any,
    rows: int,
    columns: int,
    tokens: int,
    references: ReferenceTokens = NOTHING,
    frames: int = 1,
) -> Fixed:
    """Returns cosines and sines of rotary positions [1, T + N, D]. For references, appends their
    tokens with the picture's timestep, and if there are any their tokens with timestep 0.

    Each picture is centred, as in ComfyUI: diffusers places one of odd sides a row or column
    before. Text begins on the diagonal behind the picture, whatever the references' sizes.
    """
    latents = [padded(latent, side(module)) for latent in references.latents]
    planes = [((rows, columns), (frame, 0, 0)) for frame in range(frames)]
    placing = "index" if references.placing in (STILL, BEHIND) else references.placing
    seen = list(placed(latents, rows, columns, placing))
    if references.placing == BEHIND:
        seen = [(grid, (-plane, down, across)) for grid, (plane, down, across) in seen]
    place = "meta" if module.device.type == "meta" else "cpu"  # as diffusers does
    first = max(rows // 2, columns // 2)
    text = torch.arange(first, first + tokens, dtype=torch.float64, device=place)
    ids = [text[:, None].expand(tokens, 3)]
    for (high, wide), start in (*planes, *seen):
        corner = torch.tensor(start, dtype=torch.float64, device=place)
        centre = torch.tensor([0, high // 2, wide // 2], dtype=torch.float64, device=place)
        ids.append(grid_ids(high, wide, place) + corner - centre)
    turns = _frequencies(module, torch.cat(ids)).to(module.device)
    tables = [part.repeat_interleave(2, dim=-1)[None] for part in (turns.real, turns.imag)]
    if not latents:
        return tuple(tables)
    read = torch.cat([module.img_in(packed(latent, side(module))) for latent in latents], dim=1)
    return (*tables, read[:, :0], read) if references.placing == STILL else (*tables, read)


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    embedders, dtype = module.time_text_embed, module.dtype
    now = timestep.float().to(dtype)
    times = torch.stack([now, torch.zeros_like(now)], dim=1)
    # a model trained with two timesteps embeds both in one product
    groups = [times] if module.config.get("zero_cond_t") else times.chunk(2, dim=1)
    made = [
        embedders.timestep_embedder(
            torch.unflatten(embedders.time_proj(group.flatten()).to(dtype), 0, group.shape)
        )
        for group in groups
    ]
    each = torch.cat(made, dim=1)
    if module.config.get("use_additional_t_cond"):
        first = torch.zeros(1, dtype=torch.long, device=now.device)
        each = each + embedders.addition_t_embedding(first)  # its weights may be 8 bits wide
    return each.flatten(1)


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    return torch.cat([module.img_in(packed(x, side(module))), *fixed[2:]], dim=1), context


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
    cosines, sines, *references = fixed
    rotary, still = (cosines[0], sines[0]), sum(one.shape[1] for one in references[1:])
    one = _chain(module)[number]
    text, hidden = block_tokens(one, hidden, text, embedding, rotary, still, active)
    return hidden, text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    picture = hidden[:, : rows * columns]  # reference tokens follow
    now = embedding.chunk(2, dim=-1)[0]
    return unpacked(module.proj_out(module.norm_out(picture, now)), rows, columns, side(module))


def hint(module: Any, reference: Tensor) -> Tensor:
    """Returns the tokens of a latent. A Fun ControlNet reads a mask and a latent to inpaint behind
    it, which are zeros.
    """
    fun = _is_fun(module)
    embedder = module.control_img_in if fun else module.controlnet_x_embedder
    seen = packed(padded(reference, side(module)), side(module))
    if fun:
        seen = pad(seen, (0, embedder.in_features - seen.shape[-1]))
    tokens: Tensor = embedder(seen)
    return tokens


def residual(module: Any, number: int, hidden: Tensor) -> Tensor:
    blocks = _chain(module)
    made = blocks[number].after_proj if _is_fun(module) else module.controlnet_blocks[number]
    found: Tensor = made(hidden)
    return found


def pad_token(module: Any) -> Tensor:
    width = module.config.num_attention_heads * module.config.attention_head_dim
    return torch.empty(1, 0, width, dtype=module.dtype, device=module.device)


def embed_control(
    module: Any,
    tokens: Tokens,
    hint: Tensor,
    vectors: tuple[Tensor, ...],
    pad_token: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Adds the hint to the model's picture tokens, without those of references behind them."""
    hidden = module.control_blocks[0].before_proj(hint) + tokens.hidden[:, : hint.shape[1]]
    return hidden, tokens.text, tokens.embedding


def model_tokens(
    module: Any, batch: int, patches: int, text: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    width = module.config.num_attention_heads * module.config.attention_head_dim
    hidden, words, embedding = (
        torch.empty(batch, size, width, device="meta") for size in (patches, text, 2)
    )
    return hidden, words, embedding.flatten(1)


def _is_fun(module: Any) -> bool:
    return isinstance(module, QwenImageFunControlNetModel)


def _chain(module: Any) -> Any:
    return module.control_blocks if _is_fun(module) else module.transformer_blocks


def unshifted(values: Mapping[str, Any]) -> bool:
    return False


def _frequencies(module: Any, ids: Tensor) -> Tensor:
    """Returns rotary positions [S, D / 2] complex64 of ids [S, 3]: plane, row, column."""
    found = []
    for axis, width in enumerate(module.config.axes_dims_rope):
        steps = torch.arange(0, width, 2, device=ids.device).float().div(width)
        angles = torch.outer(ids[:, axis].float(), 1.0 / torch.pow(THETA, steps))
        found.append(torch.polar(torch.ones_like(angles), angles))
    return torch.cat(found, dim=-1)
