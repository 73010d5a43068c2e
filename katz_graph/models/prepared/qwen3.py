"""Computes blocks of transformers' Qwen3 with our kernels, see `prepare`. In eval mode."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import (
    ALL_ATTENTION_FUNCTIONS,
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
    Qwen3RMSNorm,
    eager_attention_forward,
)

from katz_graph.kernels.norm_rotary import norm_rotary
from katz_graph.kernels.rms_norm import residual_rms_norm, rms_norm
from katz_graph.models.prepared.activations import gated, unknown_gate
from katz_graph.models.projections import Fusible


class PreparedQwen3RMSNorm(Qwen3RMSNorm):  # type: ignore[misc]
    """Normalises rows by their root mean square."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class PreparedQwen3MLP(Fusible, Qwen3MLP):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return unknown_gate(block.act_fn)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(gated(self.act_fn, *self.projected(x)))
        return output


class PreparedQwen3Attention(Fusible, Qwen3Attention):  # type: ignore[misc]
    """Computes causal attention with normalised, rotated queries and keys; three products as one if
    they are `FUSED`.
    """

    @staticmethod
    def unsupported(layer: Any) -> str:
        return "dropout" if layer.attention_dropout and layer.training else ""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Takes [B, T, C]. Returns [B, T, C], and attention weights if computed."""
        heads = (*hidden_states.shape[:-1], -1, self.head_dim)
        query, key, value = (part.view(heads) for part in self.projected(hidden_states))
        # both halves of a table are equal
        cosine, sine = (one[..., : self.head_dim // 2] for one in position_embeddings)
        query, key = (
            norm_rotary(one, norm.weight, None, norm.variance_epsilon, cosine, sine, adjacent=False)
            for one, norm in ((query, self.q_norm), (key, self.k_norm))
        )
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **options,
        )
        return self.o_proj(mixed.reshape(*heads[:2], -1)), weights


class PreparedQwen3DecoderLayer(Qwen3DecoderLayer):  # type: ignore[misc]
    """Computes self-attention and a feed-forward, each with a norm and a residual."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> Tensor:
        """Takes and returns [B, T, C]."""
        mixed, _ = self.self_attn(
            hidden_states=self.input_layernorm(hidden_states),
            attention_mask=attention_mask,
            **options,
        )
        norm = self.post_attention_layernorm
        hidden, normalised = residual_rms_norm(
            mixed, hidden_states, norm.weight, norm.variance_epsilon
        )
        fed: Tensor = hidden + self.mlp(normalised)
        return fed
