"""Computes blocks of transformers' Qwen2 with our kernels, see `prepare`."""

from __future__ import annotations

from torch import Tensor
from transformers.models.qwen2.modeling_qwen2 import (
    Qwen2Attention,
    Qwen2DecoderLayer,
    Qwen2MLP,
    Qwen2RMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from katz_graph.models.prepared.language import CausalAttention, DecoderLayer, GatedMLP, RMSNorm


class PreparedQwen2RMSNorm(RMSNorm, Qwen2RMSNorm):  # type: ignore[misc]
    pass


class PreparedQwen2MLP(GatedMLP, Qwen2MLP):  # type: ignore[misc]
    pass


class PreparedQwen2Attention(CausalAttention, Qwen2Attention):  # type: ignore[misc]
    eager = staticmethod(eager_attention_forward)

    def turned(
        self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor]:
        rotated: tuple[Tensor, Tensor] = apply_rotary_pos_emb(query, key, cosine, sine, 2)
        return rotated


class PreparedQwen2DecoderLayer(DecoderLayer, Qwen2DecoderLayer):  # type: ignore[misc]
    pass
