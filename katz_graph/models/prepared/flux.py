"""Computes the blocks of FLUX.1 with our kernels, see `prepare` and `prepared.joint`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.models.transformers.transformer_flux import (
    FluxSingleTransformerBlock,
    FluxTransformerBlock,
)
from torch import Tensor, nn

from katz_graph.kernels.head_norm import Rotary, head_norm
from katz_graph.kernels.joined_gelu import joined_gelu
from katz_graph.kernels.modulated_norm import gated_residual, modulated_norm
from katz_graph.models.prepared.joint import (
    JointBlock,
    attended,
    attention,
    fed_forward,
    head_norms,
    joined,
    limited,
    linear_by_row,
    other_processor,
)
from katz_graph.models.prepared.modulations import Activated, ModulatedBlock
from katz_graph.models.projections import FUSED, Fusible


class PreparedFluxBlock(JointBlock, FluxTransformerBlock):  # type: ignore[misc]
    """Computes a block with separate weights for picture and text tokens."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return other_processor(block.attn, "FluxAttnProcessor")

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor | Activated,
        image_rotary_emb: Rotary | None = None,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Takes picture tokens [B, N, C] and text tokens [B, T, C]; returns text, then picture."""
        picture, text = self.vectors(temb)
        shift, scale, gate, *rest = picture.chunk(6, dim=1)
        (normalised,) = modulated_norm(hidden_states, [(scale, shift)], self.norm1.norm.eps)
        shift, scale, text_gate, *text_rest = text.chunk(6, dim=1)
        (text_normalised,) = modulated_norm(
            encoder_hidden_states, [(scale, shift)], self.norm1_context.norm.eps
        )
        mixed, text_mixed = self._mixed(
            normalised, text_normalised, image_rotary_emb, joint_attention_kwargs or {}
        )
        hidden = fed_forward(hidden_states, [(gate, mixed)], rest, self.norm2, self.ff)
        text = fed_forward(
            encoder_hidden_states,
            [(text_gate, text_mixed)],
            text_rest,
            self.norm2_context,
            self.ff_context,
        )
        return limited(text), hidden

    def _mixed(
        self, picture: Tensor, text: Tensor, rotary: Rotary | None, options: Mapping[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Returns the attention of picture and text tokens."""
        layer = self.attn
        if self.picture is None or self.text is None:
            found: tuple[Tensor, Tensor] = layer(
                hidden_states=picture,
                encoder_hidden_states=text,
                image_rotary_emb=rotary,
                **options,
            )
            return found
        norms = head_norms((layer.norm_added_q, layer.norm_added_k), (layer.norm_q, layer.norm_k))
        mixed = attention(layer, (text, self.text), (picture, self.picture), norms, rotary)
        end = text.shape[1]
        return (
            layer.to_out[1](linear_by_row(layer.to_out[0], mixed[:, end:])),
            linear_by_row(layer.to_add_out, mixed[:, :end]),
        )


class PreparedFluxSingleBlock(FluxSingleTransformerBlock, ModulatedBlock, Fusible):  # type: ignore[misc]
    """Computes a block with attention and feed-forward of the same tokens."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return other_processor(block.attn, "FluxAttnProcessor")

    def modulated(self) -> Sequence[Any]:
        return (self.norm,)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.attn.to_q, self.attn.to_k, self.attn.to_v, self.proj_mlp

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor | Activated,
        image_rotary_emb: Rotary | None = None,
        joint_attention_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Takes picture tokens [B, N, C] and text tokens [B, T, C]; returns text, then picture."""
        tokens = joined(encoder_hidden_states, hidden_states)
        (vectors,) = self.vectors(temb)
        shift, scale, gate = vectors.chunk(3, dim=1)
        (normalised,) = modulated_norm(tokens, [(scale, shift)], self.norm.norm.eps)
        mixed = self._mixed(normalised, image_rotary_emb, joint_attention_kwargs or {})
        made = limited(gated_residual(tokens, (gate, self.proj_out(mixed))))
        end = encoder_hidden_states.shape[1]
        return made[:, :end], made[:, end:]

    def _mixed(self, x: Tensor, rotary: Rotary | None, options: Mapping[str, Any]) -> Tensor:
        """Returns attention and feed-forward next to each other: [B, N, C + M]."""
        layer, fused = self.attn, getattr(self, FUSED, None)
        if fused is None:
            fed = self.act_mlp(self.proj_mlp(x))
            return torch.cat([layer(hidden_states=x, image_rotary_emb=rotary, **options), fed], 2)
        whole = fused.whole(x)
        *heads, fed = fused.widths
        query_key_value, fed = whole.split_with_sizes([sum(heads), fed], dim=-1)
        (norm,) = head_norms((layer.norm_q, layer.norm_k))
        head_norm(query_key_value, layer.heads, norm, norm, 0, rotary)
        return joined_gelu(attended(query_key_value, layer.heads), fed)
