"""Computes blocks of transformers' CLIP in eval mode with our kernels, see `prepare`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.models.clip.modeling_clip import (
    ALL_ATTENTION_FUNCTIONS,
    CLIPAttention,
    CLIPEncoderLayer,
    eager_attention_forward,
)

from katz_graph.models.prepared.norms import residual_norm
from katz_graph.models.projections import FUSED, Fusible


class PreparedCLIPEncoderLayer(CLIPEncoderLayer):  # type: ignore[misc]
    """Computes self-attention and a feed-forward, each with a norm and a residual."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Takes and returns [B, T, C]."""
        mixed, _ = self.self_attn(
            hidden_states=self.layer_norm1(hidden_states), attention_mask=attention_mask, **options
        )
        hidden, normalised = residual_norm(self.layer_norm2, mixed, hidden_states)
        fed: Tensor = hidden + self.mlp(normalised)
        return fed


class PreparedCLIPAttention(Fusible, CLIPAttention):  # type: ignore[misc]
    """Computes attention, with one product for its three projections if they are `FUSED`."""

    @staticmethod
    def unsupported(layer: Any) -> str:
        return "dropout" if layer.dropout and layer.training else ""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Takes [B, T, C]. Returns [B, T, C], and attention weights if computed."""
        if getattr(self, FUSED, None) is None:
            own: tuple[Tensor, Tensor | None] = super().forward(
                hidden_states, attention_mask, **options
            )
            return own
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.projected(hidden_states)
        )
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, weights = attention(
            self, query, key, value, attention_mask, scaling=self.scale, **options
        )
        return self.out_proj(mixed.reshape(hidden_states.shape)), weights
