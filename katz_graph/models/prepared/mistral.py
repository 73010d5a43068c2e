"""Computes blocks of transformers' Mistral with our kernels, see `prepare`."""

from __future__ import annotations

from torch import Tensor
from transformers.models.mistral.modeling_mistral import (
    MistralAttention,
    MistralDecoderLayer,
    MistralMLP,
    MistralRMSNorm,
    apply_rotary_pos_emb,
    eager_attention_forward,
)

from katz_graph.models.prepared.language import CausalAttention, DecoderLayer, GatedMLP, RMSNorm


class PreparedMistralRMSNorm(RMSNorm, MistralRMSNorm):  # type: ignore[misc]
    pass


class PreparedMistralMLP(GatedMLP, MistralMLP):  # type: ignore[misc]
    pass


class PreparedMistralAttention(CausalAttention, MistralAttention):  # type: ignore[misc]
    eager = staticmethod(eager_attention_forward)

    def turned(
        self, query: Tensor, key: Tensor, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor]:
        rotated: tuple[Tensor, Tensor] = apply_rotary_pos_emb(query, key, cosine, sine, 2)
        return rotated


class PreparedMistralDecoderLayer(DecoderLayer, MistralDecoderLayer):  # type: ignore[misc]
    pass
