"""Computes layers of diffusers' Krea 2 with our kernels, see `prepare`. Products of one input may
be computed as one: those of attention, and those of a feed-forward.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_krea2 import Krea2Attention, Krea2SwiGLU
from torch import Tensor, nn

from katz_graph.kernels.gated_activation import silu_gated
from katz_graph.kernels.head_norm import Rotary
from katz_graph.models.prepared.joint import other_processor
from katz_graph.models.projections import Fusible


class PreparedKrea2SwiGLU(Fusible, Krea2SwiGLU):  # type: ignore[misc]
    """Computes a gated feed-forward."""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.gate, self.up

    def forward(self, hidden_states: Tensor) -> Tensor:
        output: Tensor = self.down(silu_gated(*self.projected(hidden_states)))
        return output


class PreparedKrea2Attention(Fusible, Krea2Attention):  # type: ignore[misc]
    """Computes gated attention, several heads of queries for each head of keys and values."""

    @staticmethod
    def unsupported(layer: Any) -> str:
        return other_processor(layer, "Krea2AttnProcessor")

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.to_q, self.to_k, self.to_v, self.to_gate

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Rotary | None = None,
        **options: Any,
    ) -> Tensor:
        """Takes and returns [B, N, C]."""
        *heads, gate = self.projected(hidden_states)
        query, key, value = (torch.unflatten(one, -1, (-1, self.head_dim)) for one in heads)
        query, key = self.norm_q(query), self.norm_k(key)
        if image_rotary_emb is not None:
            query, key = (
                apply_rotary_emb(one, image_rotary_emb, sequence_dim=1) for one in (query, key)
            )
        groups = self.num_heads // self.num_kv_heads
        if groups > 1:
            key, value = (one.repeat_interleave(groups, dim=2) for one in (key, value))
        mixed = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=attention_mask,
            backend=self.processor._attention_backend,
            parallel_config=self.processor._parallel_config,
        )
        output: Tensor = self.to_out[0](mixed.flatten(2, 3) * torch.sigmoid(gate))
        return output
