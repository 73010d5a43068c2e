"""Computes blocks of transformers' T5 and mT5 encoders with our kernels, see `prepare`. In eval
mode, without caches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.mt5.modeling_mt5 import (
    MT5Attention,
    MT5Block,
    MT5DenseGatedActDense,
    MT5LayerNorm,
)
from transformers.models.t5.modeling_t5 import (
    ALL_ATTENTION_FUNCTIONS,
    T5Attention,
    T5Block,
    T5DenseGatedActDense,
    T5LayerNorm,
    eager_attention_forward,
)

from katz_graph.kernels.rms_norm import residual_rms_norm, rms_norm
from katz_graph.models.prepared.activations import gated, unknown_gate
from katz_graph.models.projections import FUSED, Fusible


class _Norm:
    weight: nn.Parameter
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.weight, self.variance_epsilon)


class _GatedDense(Fusible):
    act: nn.Module
    wi_0: nn.Linear
    wi_1: nn.Linear
    wo: nn.Linear

    @staticmethod
    def unsupported(block: Any) -> str:
        return unknown_gate(block.act)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.wi_0, self.wi_1

    def forward(self, hidden_states: Tensor) -> Tensor:
        active = gated(self.act, *self.projected(hidden_states))
        output: Tensor = self.wo(active.to(self.wo.weight.dtype))
        return output


class _Attention(Fusible):
    q: nn.Linear
    k: nn.Linear
    v: nn.Linear

    @staticmethod
    def unsupported(layer: Any) -> str:
        return "dropout" if layer.dropout and layer.training else ""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.q, self.k, self.v

    def forward(
        self: Any,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        position_bias: Tensor | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Takes [B, T, C]. Returns [B, T, C], the position bias, and weights if computed."""
        if getattr(self, FUSED, None) is None or not (
            key_value_states is None and past_key_values is None
        ):
            own: tuple[Tensor, Tensor | None, Tensor | None] = super().forward(  # type: ignore[misc]
                hidden_states, mask, key_value_states, position_bias, past_key_values, **options
            )
            return own
        heads = (*hidden_states.shape[:-1], -1, self.key_value_proj_dim)
        query, key, value = (
            part.view(heads).transpose(1, 2) for part in self.projected(hidden_states)
        )
        if position_bias is None and self.has_relative_attention_bias:
            tokens = hidden_states.shape[1]
            position_bias = self.compute_bias(tokens, tokens, device=query.device)
        attention = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        mixed, weights = attention(
            self,
            query,
            key,
            value,
            mask,
            scaling=self.scaling,
            position_bias=position_bias,
            **options,
        )
        return self.o(mixed.reshape(*heads[:2], -1)), position_bias, weights


class _Block:
    layer: Any

    @staticmethod
    def unsupported(block: Any) -> str:
        if block.is_decoder:
            return "decoder"
        return "dropout" if block.layer[0].dropout.p and block.training else ""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        *decoder: None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Takes [B, T, C], and None for a decoder's inputs. Returns [B, T, C], position bias."""
        attention, feed_forward = self.layer
        mixed, position_bias, _ = attention.SelfAttention(
            attention.layer_norm(hidden_states),
            mask=attention_mask,
            position_bias=position_bias,
            **options,
        )
        norm = feed_forward.layer_norm
        if hidden_states.dtype == torch.float16:
            hidden = _clamped(hidden_states + mixed)
            normalised = norm(hidden)
        else:
            hidden, normalised = residual_rms_norm(
                mixed, hidden_states, norm.weight, norm.variance_epsilon
            )
        return (
            _clamped(hidden + feed_forward.DenseReluDense(normalised)),
            position_bias,
            None,
        )


class PreparedT5LayerNorm(_Norm, T5LayerNorm):  # type: ignore[misc]
    """Normalises rows by their root mean square."""


class PreparedMT5LayerNorm(_Norm, MT5LayerNorm):  # type: ignore[misc]
    """Normalises rows by their root mean square."""


class PreparedT5DenseGatedActDense(_GatedDense, T5DenseGatedActDense):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""


class PreparedMT5DenseGatedActDense(_GatedDense, MT5DenseGatedActDense):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""


class PreparedT5Attention(_Attention, T5Attention):  # type: ignore[misc]
    """Computes attention, with one product for its three projections if they are `FUSED`."""


class PreparedMT5Attention(_Attention, MT5Attention):  # type: ignore[misc]
    """Computes attention, with one product for its three projections if they are `FUSED`."""


class PreparedT5Block(_Block, T5Block):  # type: ignore[misc]
    """Computes self-attention and a feed-forward, each with a norm and a residual."""


class PreparedMT5Block(_Block, MT5Block):  # type: ignore[misc]
    """Computes self-attention and a feed-forward, each with a norm and a residual."""


def _clamped(hidden: Tensor) -> Tensor:
    """Clamps infinities in float16, as T5's blocks do."""
    if hidden.dtype != torch.float16:
        return hidden
    largest = torch.finfo(hidden.dtype).max
    limit = torch.where(torch.isinf(hidden).any(), largest - 1000, largest)
    return torch.clamp(hidden, min=-limit, max=limit)
