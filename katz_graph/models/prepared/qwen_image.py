"""Computes the blocks of Qwen-Image with our kernels, see `prepare` and `prepared.joint`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformerBlock
from torch import Tensor

from katz_graph.kernels.head_norm import Rotary
from katz_graph.kernels.modulated_norm import gated_norm, gated_residual, modulated_norm
from katz_graph.models.active import Active
from katz_graph.models.prepared.joint import (
    JointBlock,
    fed_forward,
    limited,
    other_processor,
    text_first,
)
from katz_graph.models.prepared.modulations import Activated

Parts = Sequence[tuple[slice, Sequence[Tensor]]]
"""Ranges of tokens, each with its modulation: shift, scale and gate [B, C], twice."""


class PreparedQwenImageBlock(JointBlock, QwenImageTransformerBlock):  # type: ignore[misc]
    """Computes a block with separate weights for picture and text tokens."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return other_processor(block.attn, "QwenDoubleStreamAttnProcessor2_0")

    def modulated(self) -> Sequence[Any]:
        return SimpleNamespace(linear=self.img_mod[1]), SimpleNamespace(linear=self.txt_mod[1])

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        encoder_hidden_states_mask: Tensor | None,
        temb: Tensor,
        image_rotary_emb: tuple[Tensor, Tensor],
        joint_attention_kwargs: Mapping[str, Any] | None = None,
        modulate_index: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Takes diffusers' arguments; returns text, then picture. diffusers computes masked texts
        and tokens with two timesteps.
        """
        if encoder_hidden_states_mask is not None or self.zero_cond_t or joint_attention_kwargs:
            given = encoder_hidden_states_mask, temb, image_rotary_emb
            more = joint_attention_kwargs, modulate_index
            made: tuple[Tensor, Tensor] = super().forward(
                hidden_states, encoder_hidden_states, *given, *more
            )
            return made
        places = torch.cat([image_rotary_emb[1], image_rotary_emb[0]])
        cosines, sines = (part.repeat_interleave(2, dim=-1) for part in (places.real, places.imag))
        return block_tokens(self, hidden_states, encoder_hidden_states, temb, (cosines, sines))


def block_tokens(
    block: Any,
    hidden: Tensor,
    text: Tensor,
    embedding: Tensor | Activated,
    rotary: Rotary,
    still: int = 0,
    active: Active | None = None,
) -> tuple[Tensor, Tensor]:
    """Runs a block of Qwen-Image, prepared or not, on picture tokens [B, N, C] and text tokens
    [B, T, C]; returns text, then picture.

    `embedding` [B, E], or [B, 2E]: that of the timestep, then that of timestep 0. `still`: the
    number of last picture tokens whose timestep is 0. `active`: the picture tokens to compute.
    """
    moving, text_vectors = _vectors(block, embedding, bool(still))
    end = hidden.shape[1] - still
    parts = [(slice(None, end), moving[0])]
    if still:
        parts.append((slice(end, None), moving[1]))
    normalised = _together(
        parts,
        lambda part, vectors: modulated_norm(
            hidden[:, part], [(vectors[1], vectors[0])], block.img_norm1.eps
        )[0],
    )
    shift, scale, text_gate, *text_rest = text_vectors
    (text_normalised,) = modulated_norm(text, [(scale, shift)], block.txt_norm1.eps)
    if active is not None:
        mixed, text_mixed = text_first(block, normalised, text_normalised, rotary, active)
        hidden = active.taken(hidden)
    elif getattr(block, "picture", None) is not None:
        mixed, text_mixed = text_first(block, normalised, text_normalised, rotary)
    else:
        mixed, text_mixed = block.attn(
            hidden_states=normalised,
            encoder_hidden_states=text_normalised,
            image_rotary_emb=_of_parts(rotary, text.shape[1]),
        )
    hidden = _fed_forward(block, parts, hidden, mixed)
    text = fed_forward(text, [(text_gate, text_mixed)], text_rest, block.txt_norm2, block.txt_mlp)
    return limited(text), limited(hidden if active is None else active.placed(hidden))


def _vectors(
    block: Any, embedding: Tensor | Activated, still: bool
) -> tuple[Sequence[Sequence[Tensor]], Sequence[Tensor]]:
    """Returns the modulations of the picture's tokens, of the timestep and if `still` or if the
    model was trained so of timestep 0, and that of the text.
    """
    values = embedding.values if isinstance(embedding, Activated) else F.silu(embedding)
    width = block.dim
    rows = torch.unflatten(values, -1, (-1, width))
    now = rows[:, 0]
    fused = getattr(block, "modulations", None)
    if still or block.zero_cond_t:
        of_picture, of_text = (
            (block.img_mod[1], block.txt_mod[1])
            if fused is None
            else (fused.part(0, 1).whole, fused.part(1, 2).whole)
        )
        pictures, text = of_picture(rows).unbind(1), of_text(now)
    elif fused is None:
        pictures, text = [block.img_mod[1](now)], block.txt_mod[1](now)
    else:
        picture, text = fused(now)
        pictures = [picture]
    return [one.chunk(6, dim=-1) for one in pictures], text.chunk(6, dim=-1)


def _fed_forward(block: Any, parts: Parts, hidden: Tensor, mixed: Tensor) -> Tensor:
    """Adds the gated attention, and then the gated feed-forward of the normalised sum."""
    if len(parts) == 1:
        ((_, (_, _, gate, *rest)),) = parts
        return fed_forward(hidden, [(gate, mixed)], rest, block.img_norm2, block.img_mlp)
    sums, normed = zip(
        *(
            gated_norm(
                hidden[:, part], [(gate, mixed[:, part])], (scale, shift), block.img_norm2.eps
            )
            for part, (_, _, gate, shift, scale, _) in parts
        ),
        strict=True,
    )
    fed = block.img_mlp(torch.cat(normed, dim=1))
    return torch.cat(
        [
            gated_residual(one, (vectors[5], fed[:, part]))
            for one, (part, vectors) in zip(sums, parts, strict=True)
        ],
        dim=1,
    )


def _together(parts: Parts, compute: Callable[[slice, Sequence[Tensor]], Tensor]) -> Tensor:
    made = [compute(part, vectors) for part, vectors in parts]
    return made[0] if len(made) == 1 else torch.cat(made, dim=1)


def _of_parts(rotary: Rotary, text: int) -> tuple[Tensor, Tensor]:
    """Returns the complex positions [N, D / 2] of picture and text tokens, as diffusers takes
    them.
    """
    places = torch.complex(*(one[:, ::2].contiguous() for one in rotary))
    return places[text:], places[:text]
