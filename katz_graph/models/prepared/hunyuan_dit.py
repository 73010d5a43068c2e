"""Computes the blocks of diffusers' HunyuanDiT and its ControlNets with our kernels, see `prepare`.

Passes over the memory of a block of N tokens of width C, reading and writing, in units of N · C
values, without products and attention itself. diffusers' norms compute in float32, so of half
precision they read and write more than these numbers.

| | library | here |
|---|--:|--:|
| norm of tokens joined to an earlier block's | 8 | 4 |
| norm with shift | 4 | 2 |
| norms and positions of queries and keys | about 32, partly in float32 | 4 |
| residual, then norm, twice | 10 | 8 |
| norm and positions of queries of the text | about 16, partly in float32 | 2 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from diffusers.models.transformers.hunyuan_transformer_2d import HunyuanDiTBlock
from torch import Tensor, nn

from katz_graph.kernels.head_norm import Rotary
from katz_graph.kernels.layer_norm import joined_layer_norm, shifted_layer_norm
from katz_graph.kernels.norm_rotary import norm_rotary
from katz_graph.models.prepared.modulations import Activated, ModulatedBlock
from katz_graph.models.prepared.norms import residual_norm
from katz_graph.models.projections import FusedProjections, Fusible, projected


class PreparedHunyuanDiTBlock(HunyuanDiTBlock, ModulatedBlock, Fusible):  # type: ignore[misc]
    """Computes self-attention, attention to the text and a feed-forward, each with a norm and a
    residual. May read the tokens of an earlier block.
    """

    picture: FusedProjections | None = None
    text: FusedProjections | None = None

    @staticmethod
    def unsupported(block: Any) -> str:
        if block._chunk_size is not None:
            return "feed-forward in chunks"
        return "" if block.attn1.norm_q is not None else "heads without norms"

    def modulated(self) -> Sequence[Any]:
        return (self.norm1,)

    def fuse(self) -> None:
        own, other = self.attn1, self.attn2
        self.picture = FusedProjections.of(own.to_q, own.to_k, own.to_v)
        self.text = FusedProjections.of(other.to_k, other.to_v)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor | Activated,
        image_rotary_emb: Rotary,
        skip: Tensor | None = None,
    ) -> Tensor:
        """Takes and returns picture tokens [B, N, C]; text tokens are [B, T, E]."""
        if skip is not None:
            hidden_states = self.skip_linear(
                joined_layer_norm(hidden_states, skip, *_weights(self.skip_norm))
            )
        cosine, sine = (one[None, :, ::2] for one in image_rotary_emb)
        (shift,) = self.vectors(temb)
        normalised = shifted_layer_norm(hidden_states, shift, *_weights(self.norm1.norm))
        own, other = self.attn1, self.attn2
        layers = own.to_q, own.to_k, own.to_v
        query, key, value = (
            _heads(own, one) for one in projected(self.picture, layers, normalised)
        )
        query = _rotated(own.norm_q, query, cosine, sine)
        key = _rotated(own.norm_k, key, cosine, sine)
        hidden, normalised = residual_norm(
            self.norm2, _attended(own, query, key, value), hidden_states
        )
        query = _rotated(other.norm_q, _heads(other, other.to_q(normalised)), cosine, sine)
        key, value = (
            _heads(other, one)
            for one in projected(self.text, (other.to_k, other.to_v), encoder_hidden_states)
        )
        hidden, normalised = residual_norm(
            self.norm3, _attended(other, query, other.norm_k(key), value), hidden
        )
        fed: Tensor = hidden + self.ff(normalised)
        return fed


def _weights(norm: nn.LayerNorm) -> tuple[Tensor | None, Tensor | None, float]:
    return norm.weight, norm.bias, norm.eps


def _heads(layer: Any, x: Tensor) -> Tensor:
    return x.view(*x.shape[:-1], layer.heads, -1)


def _rotated(norm: nn.LayerNorm, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return norm_rotary(x, norm.weight, norm.bias, norm.eps, cosine, sine, adjacent=True)


def _attended(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Returns the output [B, N, C] of attention for tokens [B, N, H, D]."""
    query, key, value = (one.transpose(1, 2) for one in (query, key, value))
    mixed = F.scaled_dot_product_attention(query, key, value)
    output: Tensor = layer.to_out[0](mixed.transpose(1, 2).flatten(2))
    return output
