"""Computes the blocks of Qwen-Image 2.1 with our kernels, see `prepare`.

Passes over the memory of a block of N tokens of width C, reading and writing, in units of N · C
values, without products and attention itself:

| | library | here |
|---|--:|--:|
| norm with scale | 5 | 2 |
| norms and positions of queries and keys | 30, partly in float32 | 4 |
| gated residual, then norm with scale | 10 | 4 |
| gate of a feed-forward of 3 C | 15 | 9 |
| gated residual | 5 | 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.transformers.transformer_qwenimage21 import (
    QwenImage21SwiGLUFeedForward,
    QwenImage21TransformerBlock,
)
from torch import Tensor, nn

from katz_graph.kernels.gated_activation import silu_gated
from katz_graph.kernels.modulated_norm import gated_norm, gated_residual, modulated_norm
from katz_graph.kernels.norm_rotary import norm_rotary
from katz_graph.models.prepared.joint import limited, other_processor
from katz_graph.models.projections import FUSED, Fusible, projected


class Part(NamedTuple):
    """Tokens [B, N, C] with their modulation [B, C]: scale and gate, twice."""

    tokens: Tensor
    vectors: Sequence[Tensor]


class Segment(NamedTuple):
    """Tokens from `start` to `end`, exclusive, that attend to all tokens before `end`, or as the
    mask [1, 1, end - start, end] allows.
    """

    start: int
    end: int
    mask: Tensor | None = None


class PreparedFeedForward(Fusible, QwenImage21SwiGLUFeedForward):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.gate_layer, self.proj

    def forward(self, hidden_states: Tensor) -> Tensor:
        output: Tensor = self.out(silu_gated(*self.projected(hidden_states)))
        return output


class PreparedBlock(Fusible, QwenImage21TransformerBlock):  # type: ignore[misc]
    """Holds the fused projections of a block, which `block_tokens` computes."""

    @staticmethod
    def unsupported(block: Any) -> str:
        return other_processor(block.attn, "QwenImage21AttnProcessor")

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.attn.to_q, self.attn.to_k, self.attn.to_v


def block_tokens(
    block: Any,
    parts: Sequence[Part],
    turns: Tensor,
    segments: Sequence[Segment],
    before: Sequence[Tensor] = (),
) -> tuple[list[Tensor], list[Tensor]]:
    """Runs a block, prepared or not, on parts of a sequence. Returns their tokens, and the keys and
    values of all. `turns` [1, S, D / 2, 2]: rotary positions. `segments` cover the sequence.
    `before`: keys and values of tokens before the sequence.
    """
    query, *own = _heads(block, parts, turns)
    every = [torch.cat(pair, dim=1) for pair in zip(before, own, strict=True)] if before else own
    mixed = [_attended(query, every, segment) for segment in segments]
    return _fed(block, parts, _joined(mixed)), own


def keys_values(block: Any, part: Part, turns: Tensor) -> list[Tensor]:
    """Returns the keys and values of tokens, [B, N, heads, D] each."""
    return _heads(block, [part], turns, first=1)


def _heads(block: Any, parts: Sequence[Part], turns: Tensor, first: int = 0) -> list[Tensor]:
    """Returns queries, keys and values of parts [B, N, C] from number `first` on."""
    layer, fused = block.attn, getattr(block, FUSED, None)
    x = _joined([_scaled(part.tokens, part.vectors[0], block.img_norm1.eps) for part in parts])
    layers = (layer.to_q, layer.to_k, layer.to_v)[first:]
    *turned, value = (
        torch.unflatten(one, -1, (layer.heads, -1))
        for one in projected(fused and fused.part(first, 3), layers, x)
    )
    cosine, sine = turns.unbind(-1)
    norms = (layer.norm_q, layer.norm_k)[first:]
    return [
        *(
            norm_rotary(one, norm.weight, None, norm.eps, cosine, sine, adjacent=True)
            for one, norm in zip(turned, norms, strict=True)
        ),
        value,
    ]


def _attended(query: Tensor, keys_values: Sequence[Tensor], segment: Segment) -> Tensor:
    """Returns the attention [B, N, C] of a segment's tokens."""
    start, end, mask = segment
    last = keys_values[0].shape[1] - query.shape[1] + end
    key, value = (one[:, :last] for one in keys_values)
    mixed: Tensor = dispatch_attention_fn(query[:, start:end], key, value, attn_mask=mask)
    return mixed.flatten(2, 3)


def _fed(block: Any, parts: Sequence[Part], mixed: Tensor) -> list[Tensor]:
    """Adds the gated attention, and then the gated feed-forward of the normalised sum."""
    sizes = [part.tokens.shape[1] for part in parts]
    mixed = block.attn.to_out[0](mixed)
    sums, normalised = zip(
        *(
            gated_norm(
                tokens,
                [(gate.tanh(), one)],
                (scale, torch.zeros_like(scale)),
                block.img_norm2.eps,
            )
            for (tokens, (_, gate, scale, _)), one in zip(
                parts, mixed.split_with_sizes(sizes, dim=1), strict=True
            )
        ),
        strict=True,
    )
    fed = block.img_mlp(_joined(normalised)).split_with_sizes(sizes, dim=1)
    return [
        limited(gated_residual(total, (part.vectors[3].tanh(), one)))
        for part, total, one in zip(parts, sums, fed, strict=True)
    ]


def _scaled(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    return modulated_norm(x, [(scale, torch.zeros_like(scale))], eps)[0]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
