"""Computes blocks of transformers' language models with our kernels, see `prepare`. In eval mode.

The modules for single libraries combine them with the library's classes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from katz_graph.kernels.rms_norm import residual_rms_norm, rms_norm
from katz_graph.models.prepared.activations import gated, unknown_gate
from katz_graph.models.projections import Fusible


class RMSNorm:
    """Normalises rows by their root mean square."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class GatedMLP(Fusible):
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear
    act_fn: nn.Module

    @staticmethod
    def unsupported(block: Any) -> str:
        return unknown_gate(block.act_fn)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.gate_proj, self.up_proj

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(gated(self.act_fn, *self.projected(x)))
        return output


class CausalAttention(Fusible):
    """Computes causal attention with rotated queries and keys; three products as one if they are
    `FUSED`.
    """

    config: Any
    head_dim: int
    layer_idx: int
    scaling: float
    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear
    o_proj: nn.Linear
    eager: Callable[..., Any]  # the library's function without a fused kernel

    @staticmethod
    def unsupported(layer: Any) -> str:
        if getattr(layer.config, "sliding_window", None) is not None:
            return "sliding window"
        return "dropout" if layer.attention_dropout and layer.training else ""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.q_proj, self.k_proj, self.v_proj

    def turned(
        self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Returns queries and keys [B, T, H, D] rotated by their positions' tables [B, T, D]."""
        raise NotImplementedError

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
        query, key = self.turned(query, key, *position_embeddings)
        query, key, value = (one.transpose(1, 2) for one in (query, key, value))
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, self.eager
        )
        mixed, weights = attention(
            self, query, key, value, attention_mask, scaling=self.scaling, **options
        )
        return self.o_proj(mixed.reshape(*heads[:2], -1)), weights


class DecoderLayer:
    """Computes self-attention and a feed-forward, each with a norm and a residual."""

    self_attn: Any
    mlp: Any
    input_layernorm: Any
    post_attention_layernorm: Any

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
