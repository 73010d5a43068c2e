"""Runs a ControlNet in two stages: embeds its reference image once per request, and computes
residuals once per step.

Together they are bit-equal to `forward` of diffusers' ControlNetModel, and, for one picture, equal
to ControlNetUnionModel's up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from katz_graph.ir.values import Residuals, TextEncoding
from katz_graph.models.families.unet.attention import KeysValues
from katz_graph.models.families.unet.blocks import has_cross_attention
from katz_graph.models.families.unet.embedding import added_embedding, conditioned, step_embedding

if TYPE_CHECKING:
    from katz_graph.ir.values import Step


def embed_reference(controlnet: Any, image: Tensor, types: Sequence[int] = ()) -> Tensor:
    """Embeds a reference image [B, 3, H, W] in 0..1 as [B, C, H/8, W/8]; valid for all steps.

    types: the kind of reference for a union ControlNet; empty if unspecified.
    """
    if controlnet.config.controlnet_conditioning_channel_order == "bgr":
        image = image.flip(dims=[1])
    result: Tensor = controlnet.controlnet_cond_embedding(image.to(controlnet.conv_in.weight))
    for kind in types:
        # [1, B, C]: sequence length 1
        token = (result.mean(dim=(2, 3)) + controlnet.task_embedding[kind])[None]
        for layer in controlnet.transformer_layes:
            token = layer(token)
        result = result + controlnet.spatial_ch_projs(token[0])[..., None, None]
    return result


def control(
    controlnet: Any,
    step: Step,
    text: TextEncoding,
    reference: Tensor,
    strength: Tensor,
    cached: KeysValues | None = None,
    added: Tensor | None = None,
    types: Sequence[int] = (),
) -> Residuals:
    """Computes the residuals of this step times `strength` [B].

    strength: float32; reference: from `embed_reference`, [B, C, h, w] or [1, C, h, w]; cached,
    added: as for the UNet; types: as for `embed_reference`.
    """
    sample = step.model_input.to(controlnet.conv_in.weight.dtype)
    added = added_embedding(controlnet, text) if added is None else added
    if hasattr(controlnet, "control_add_embedding"):
        embedding = step_embedding(
            controlnet, sample, step.timestep, text, _type_embedding(controlnet, sample, types)
        )
        embedding = embedding if added is None else embedding + added
    else:
        embedding = step_embedding(controlnet, sample, step.timestep, text, added)
    hidden = controlnet.conv_in(sample) + reference
    skips: tuple[Tensor, ...] = (hidden,)
    for block in controlnet.down_blocks:
        arguments = conditioned(text, cached) if has_cross_attention(block) else {}
        hidden, new = block(hidden_states=hidden, temb=embedding, **arguments)
        skips += new
    if controlnet.mid_block is not None:
        arguments = conditioned(text, cached) if has_cross_attention(controlnet.mid_block) else {}
        hidden = controlnet.mid_block(hidden, embedding, **arguments)
    weak = partial(_times, strength)
    down = [
        weak(convolution(skip))
        for convolution, skip in zip(controlnet.controlnet_down_blocks, skips, strict=True)
    ]
    middle = weak(controlnet.controlnet_mid_block(hidden))
    if controlnet.config.global_pool_conditions:
        down = [residual.mean(dim=(2, 3), keepdim=True) for residual in down]
        middle = middle.mean(dim=(2, 3), keepdim=True)
    return Residuals(tuple(down), middle)


def _times(strength: Tensor, residual: Tensor) -> Tensor:
    """Multiplies each row of a residual by its strength, with one rounding."""
    return (residual * strength.reshape(-1, 1, 1, 1)).to(residual.dtype)


def _type_embedding(controlnet: Any, sample: Tensor, types: Sequence[int]) -> Tensor:
    """Embeds the kinds of reference as [B, E]; all zeros encode an unspecified kind."""
    given = sample.new_zeros(len(sample), controlnet.config.num_control_type)
    for kind in types:
        given[:, kind].fill_(1.0)
    embedded = controlnet.control_type_proj(given.flatten()).reshape(len(sample), -1)
    result: Tensor = controlnet.control_add_embedding(embedded.to(sample.dtype))
    return result
