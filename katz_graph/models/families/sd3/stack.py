"""Computes Stable Diffusion 3 transformers in parts on diffusers' modules. Implements
`families.shared.transformer_stack.Stack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.models.transformers.transformer_sd3 import SD3SingleTransformerBlock
from torch import Tensor, nn
from torch.nn.functional import pad

from katz_graph.ir.values import TextEncoding, Tokens
from katz_graph.models.active import Active
from katz_graph.models.families.sd3.files import CONTROL_TYPE
from katz_graph.models.families.shared.transformer_stack import (
    NOTHING,
    Fixed,
    ReferenceTokens,
    lacks_text,
    padded,
    unpatched,
)


def side(module: Any) -> int:
    return int(module.config.patch_size)


def blocks(module: Any) -> Sequence[nn.Module]:
    return list(module.transformer_blocks)


def parts(module: Any, name: str) -> Sequence[nn.Module]:
    match name:
        case "context":
            return [module.context_embedder]
        case "control":
            return [module.time_text_embed.timestep_embedder]
        case "embed":
            return [module.pos_embed.proj, module.time_text_embed.timestep_embedder]
        case _:
            return [module.norm_out, module.proj_out]


def context(module: Any, text: TextEncoding, kinds: tuple[int, ...] = ()) -> Tensor:
    """Embeds the text after zero-padding it to the transformer's text width."""
    missing = module.config.joint_attention_dim - text.hidden.shape[-1]
    tokens: Tensor = module.context_embedder(pad(text.hidden, (0, missing)))
    return tokens


def vectors(module: Any, text: TextEncoding) -> tuple[Tensor, ...]:
    """Embeds the pooled text, or zeros for ControlNets trained with zeros."""
    pooled = text.pooled
    assert pooled is not None  # the architecture requires it
    if unshifted(module.config):
        pooled = torch.zeros_like(pooled)
    return (module.time_text_embed.text_embedder(pooled),)


def unshifted(values: Mapping[str, Any]) -> bool:
    return bool(values.get("force_zeros_for_pooled_projection", False))


def hint(module: Any, reference: Tensor) -> Tensor:
    tokens: Tensor = module.pos_embed_input(padded(reference, side(module)))
    return tokens


def seen(values: Mapping[str, Any], pixels: Tensor) -> Tensor:
    """Converts a user's picture for a ControlNet's VAE, like ComfyUI, because Stability trained on
    edge maps in another range and on depth maps with dark foregrounds.
    """
    match values.get(CONTROL_TYPE):
        case 1:  # edges
            return pixels * 255 * 0.5 + 0.5
        case 2:  # depth
            return 1 - pixels
        case _:
            return pixels


def pad_token(module: Any) -> Tensor:
    table: Tensor = module.pos_embed.pos_embed
    return table[:, :0]


def embed_control(
    module: Any,
    tokens: Tokens,
    hint: Tensor,
    vectors: tuple[Tensor, ...],
    pad_token: Tensor,
    fixed: Fixed,
) -> tuple[Tensor, Tensor | None, Tensor]:
    return tokens.hidden + hint, None, embedding(module, tokens.step.timestep, vectors)


def model_tokens(
    module: Any, batch: int, patches: int, text: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    hidden = torch.empty(batch, patches, module.inner_dim, device="meta")
    return hidden, None, hidden[:, 0]


def residual(module: Any, number: int, hidden: Tensor) -> Tensor:
    found: Tensor = module.controlnet_blocks[number](hidden)
    return found


def fixed(
    module: Any, rows: int, columns: int, tokens: int, references: ReferenceTokens = NOTHING
) -> Fixed:
    """Returns the centre of the position table [1, rows · columns, D], or nothing for a ControlNet
    without positions.
    """
    if module.pos_embed is None:
        return ()
    size = module.pos_embed.pos_embed_max_size
    table = module.pos_embed.pos_embed.reshape(1, size, size, -1)
    down, across = (
        torch.arange(count, device=table.device) + (size - count) // 2 for count in (rows, columns)
    )
    part = table.index_select(1, down).index_select(2, across)
    return (part.reshape(1, rows * columns, -1),)


def embedding(module: Any, timestep: Tensor, vectors: tuple[Tensor, ...]) -> Tensor:
    (pooled,) = vectors
    time = module.time_text_embed.time_proj(timestep.float())
    result: Tensor = module.time_text_embed.timestep_embedder(time.to(pooled.dtype)) + pooled
    return result


def embed(
    module: Any, x: Tensor, context: Tensor, embedding: Tensor, fixed: Fixed
) -> tuple[Tensor, Tensor | None]:
    patches: Tensor = module.pos_embed.proj(x).flatten(2).transpose(1, 2)
    return (patches + fixed[0][:1]).to(patches.dtype).contiguous(), context


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
    """Runs one block. The last block returns no text tokens; a 3.5 large ControlNet has none."""
    one = module.transformer_blocks[number]
    if isinstance(one, SD3SingleTransformerBlock):
        return one(hidden, embedding), None
    if text is None:
        raise lacks_text(number)
    options = {} if active is None else {"active": active}
    text, hidden = one(hidden, text, embedding, **options)
    return hidden, text


def head(module: Any, hidden: Tensor, embedding: Tensor, rows: int, columns: int) -> Tensor:
    tokens: Tensor = module.proj_out(module.norm_out(hidden, embedding))
    return unpatched(tokens, rows, columns, side(module))
