"""Computes blocks of transformers' Qwen3 with our kernels, see `prepare`."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.models.qwen3.modeling_qwen3 import (
    Qwen3Attention,
    Qwen3DecoderLayer,
    Qwen3MLP,
    Qwen3RMSNorm,
    eager_attention_forward,
)

from katz_graph.kernels.norm_rotary import norm_rotary
from katz_graph.models.prepared.language import CausalAttention, DecoderLayer, GatedMLP, RMSNorm


class PreparedQwen3RMSNorm(RMSNorm, Qwen3RMSNorm):  # type: ignore[misc]
    pass


class PreparedQwen3MLP(GatedMLP, Qwen3MLP):  # type: ignore[misc]
    pass


class PreparedQwen3Attention(CausalAttention, Qwen3Attention):  # type: ignore[misc]
    """Also normalises queries and keys."""

    eager = staticmethod(eager_attention_forward)
    q_norm: Any
    k_norm: Any

    def turned(
        self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor]:
        # both halves of a table are equal
        cosine, sine = (one[..., : self.head_dim // 2] for one in (cosine, sine))
        query, key = (
            norm_rotary(one, norm.weight, None, norm.variance_epsilon, cosine, sine, adjacent=False)
            for one, norm in ((query, self.q_norm), (key, self.k_norm))
        )
        return query, key


class PreparedQwen3DecoderLayer(DecoderLayer, Qwen3DecoderLayer):  # type: ignore[misc]
    pass
