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
from katz_graph.models.active import Active, ActiveBlock
from katz_graph.models.prepared.joint import (
    JointBlock,
    active_attention,
    attended,
    fed_forward,
    head_norms,
    joined,
    limited,
    other_processor,
    text_first,
)
from katz_graph.models.prepared.modulations import Activated, ModulatedBlock
from katz_graph.models.projections import FUSED, Fusible, Projections


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
        active: Active | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Takes picture tokens [B, N, C] and text tokens [B, T, C]; returns text, then picture.
        `active`: the picture tokens to compute.
        """
        picture, text = self.vectors(temb)
        shift, scale, gate, *rest = picture.chunk(6, dim=1)
        (normalised,) = modulated_norm(hidden_states, [(scale, shift)], self.norm1.norm.eps)
        shift, scale, text_gate, *text_rest = text.chunk(6, dim=1)
        (text_normalised,) = modulated_norm(
            encoder_hidden_states, [(scale, shift)], self.norm1_context.norm.eps
        )
        if active is None:
            mixed, text_mixed = self._mixed(
                normalised, text_normalised, image_rotary_emb, joint_attention_kwargs or {}
            )
        else:
            mixed, text_mixed = text_first(
                self, normalised, text_normalised, image_rotary_emb, active
            )
            hidden_states = active.taken(hidden_states)
        hidden = fed_forward(hidden_states, [(gate, mixed)], rest, self.norm2, self.ff)
        if active is not None:
            hidden = active.placed(hidden)
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
        if self.picture is not None and self.text is not None:
            return text_first(self, picture, text, rotary)
        found: tuple[Tensor, Tensor] = self.attn(
            hidden_states=picture,
            encoder_hidden_states=text,
            image_rotary_emb=rotary,
            **options,
        )
        return found


class PreparedFluxSingleBlock(FluxSingleTransformerBlock, ModulatedBlock, Fusible, ActiveBlock):  # type: ignore[misc]
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
        active: Active | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Takes picture tokens [B, N, C] and text tokens [B, T, C]; returns text, then picture.
        `active`: the picture tokens to compute.
        """
        (vectors,) = self.vectors(temb)
        shift, scale, gate = vectors.chunk(3, dim=1)
        modulation, eps = (scale, shift), self.norm.norm.eps
        text, picture = encoder_hidden_states, hidden_states
        if active is None:
            tokens = joined(text, picture)
            (normalised,) = modulated_norm(tokens, [modulation], eps)
            mixed = self._mixed(normalised, image_rotary_emb, joint_attention_kwargs or {})
        else:
            (normalised,) = modulated_norm(picture, [modulation], eps)
            (text_normalised,) = modulated_norm(text, [modulation], eps)
            mixed = self._active_mixed(normalised, text_normalised, image_rotary_emb, active)
            tokens = torch.cat([text, active.taken(picture)], dim=1)
        made = limited(gated_residual(tokens, (gate, self.proj_out(mixed))))
        end = text.shape[1]
        hidden = made[:, end:]
        return made[:, :end], hidden if active is None else active.placed(hidden)

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
        return joined_gelu(attended(query_key_value.chunk(3, dim=-1), layer.heads), fed)

    def _active_mixed(
        self, picture: Tensor, text: Tensor, rotary: Rotary | None, active: Active
    ) -> Tensor:
        """Returns attention and feed-forward of text and active picture tokens."""
        layer, chosen = self.attn, active.taken(picture)
        projections = Projections(self.projections(), getattr(self, FUSED, None))
        parts = (text, text, projections), (chosen, picture, projections)
        norms = head_norms((layer.norm_q, layer.norm_k))
        mixed = active_attention(layer, parts, norms, rotary, active.positions)
        fed = projections.part(3, 4).whole(torch.cat([text, chosen], dim=1))
        return joined_gelu(mixed, fed)
