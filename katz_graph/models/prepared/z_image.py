"""Computes blocks of diffusers' Z-Image and of its ControlNets with our kernels, see `prepare`.

Passes over the memory of a block of N tokens of width C, reading and writing, in units of N · C
values, without products and attention itself:

| | library | here |
|---|--:|--:|
| norm with scale | 9 | 2 |
| norms and positions of queries and keys | 30, partly in float32 | 4 |
| norm, gate and residual, then norm with scale | 20 | 4 |
| gate of a feed-forward of 8/3 C | 13 | 8 |
| norm, gate and residual | 12 | 3 |
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.controlnets import controlnet_z_image as control
from diffusers.models.transformers import transformer_z_image as network
from torch import Tensor, nn

from katz_graph.kernels.gated_activation import silu_gated
from katz_graph.kernels.norm_rotary import norm_rotary
from katz_graph.kernels.rms_norm import residual_rms_norm, rms_norm, rms_norm_residual
from katz_graph.models.prepared.modulations import Activated, ModulatedBlock
from katz_graph.models.projections import FUSED, Fusible, projected


class _FeedForward(Fusible):
    w1: nn.Linear
    w2: nn.Linear
    w3: nn.Linear

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.w1, self.w3

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.w2(silu_gated(*self.projected(x)))
        return output


class _Block(ModulatedBlock, Fusible):
    attention: Any
    adaLN_modulation: Any
    modulation: bool
    activated = False

    def modulated(self) -> Sequence[Any]:
        if not self.modulation:
            return ()
        return (SimpleNamespace(linear=self.adaLN_modulation[0]),)

    def projections(self) -> tuple[nn.Linear, ...]:
        return self.attention.to_q, self.attention.to_k, self.attention.to_v


class PreparedFeedForward(_FeedForward, network.FeedForward):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""


class PreparedControlFeedForward(_FeedForward, control.FeedForward):  # type: ignore[misc]
    """Computes a gated feed-forward, its first two products as one if they are `FUSED`."""


class PreparedZImageTransformerBlock(
    _Block,
    network.ZImageTransformerBlock,  # type: ignore[misc]
):
    """Computes attention and a feed-forward, between norms, with gated residuals."""

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        freqs_cis: Tensor,
        adaln_input: Tensor | Activated | None = None,
        noise_mask: Tensor | None = None,
        *others: Tensor | None,
    ) -> Tensor:
        """Takes and returns [B, N, C]. diffusers computes tokens with two timesteps."""
        if noise_mask is not None:
            given = attn_mask, freqs_cis, adaln_input, noise_mask, *others
            made: Tensor = super().forward(x, *given)
            return made
        return block_tokens(self, x, attn_mask, freqs_cis, adaln_input)


class PreparedControlRefinerBlock(
    _Block,
    control.ZImageTransformerBlock,  # type: ignore[misc]
):
    """Computes attention and a feed-forward, between norms, with gated residuals."""

    def forward(
        self,
        x: Tensor,
        attn_mask: Tensor | None,
        freqs_cis: Tensor,
        adaln_input: Tensor | Activated | None = None,
    ) -> Tensor:
        """Takes and returns [B, N, C]."""
        return block_tokens(self, x, attn_mask, freqs_cis, adaln_input)


class PreparedZImageControlTransformerBlock(
    _Block,
    control.ZImageControlTransformerBlock,  # type: ignore[misc]
):
    """Computes a block of a ControlNet and its residual."""

    def forward(
        self,
        c: Tensor,
        x: Tensor,
        attn_mask: Tensor | None,
        freqs_cis: Tensor,
        adaln_input: Tensor | Activated | None = None,
    ) -> Tensor:
        """Takes the model's tokens x [B, N, C] and c: tokens for the first block, else all previous
        results. Returns the residuals of all blocks so far, and the tokens [n, B, N, C].
        """
        *residuals, tokens = (self.before_proj(c) + x,) if self.block_id == 0 else c.unbind()
        tokens = block_tokens(self, tokens, attn_mask, freqs_cis, adaln_input)
        return torch.stack([*residuals, self.after_proj(tokens), tokens])


def block_tokens(
    block: Any,
    x: Tensor,
    attn_mask: Tensor | None,
    freqs_cis: Tensor,
    adaln_input: Tensor | Activated | None = None,
) -> Tensor:
    """Returns the tokens [B, N, C] of a block of Z-Image or of its ControlNet, prepared or not."""
    scales: tuple[Tensor | None, ...] = None, None
    gates = scales
    if block.modulation:
        prepared = isinstance(block, ModulatedBlock)
        (vectors,) = (
            block.vectors(adaln_input) if prepared else [block.adaLN_modulation(adaln_input)]
        )
        scale, gate, feed_scale, feed_gate = vectors.unsqueeze(1).chunk(4, dim=2)
        scales, gates = (1.0 + scale, 1.0 + feed_scale), (gate.tanh(), feed_gate.tanh())
    before, after = block.attention_norm1, block.attention_norm2
    feed_before, feed_after = block.ffn_norm1, block.ffn_norm2
    normalised = rms_norm(x, before.weight, before.eps, scales[0])
    mixed = _attended(block, normalised, attn_mask, freqs_cis)
    x, normalised = residual_rms_norm(
        mixed, x, feed_before.weight, feed_before.eps, scales[1], after.weight, gates[0]
    )
    fed = block.feed_forward(normalised)
    return rms_norm_residual(fed, x, feed_after.weight, feed_after.eps, gates[1])


def _attended(block: Any, x: Tensor, attn_mask: Tensor | None, freqs_cis: Tensor) -> Tensor:
    layer = block.attention
    if layer.norm_q is None:
        whole: Tensor = layer(x, attention_mask=attn_mask, freqs_cis=freqs_cis)
        return whole
    query, key, value = (
        part.view(*part.shape[:-1], layer.heads, -1)
        for part in projected(getattr(block, FUSED, None), (layer.to_q, layer.to_k, layer.to_v), x)
    )
    cosine, sine = torch.view_as_real(freqs_cis).unbind(-1)
    query, key = (
        norm_rotary(one, norm.weight, None, norm.eps, cosine, sine, adjacent=True)
        for one, norm in ((query, layer.norm_q), (key, layer.norm_k))
    )
    if attn_mask is not None and attn_mask.ndim == 2:
        attn_mask = attn_mask[:, None, None, :]
    mixed = dispatch_attention_fn(
        query,
        key,
        value,
        attn_mask=attn_mask,
        backend=layer.processor._attention_backend,
        parallel_config=layer.processor._parallel_config,
    )
    output: Tensor = layer.to_out[0](mixed.flatten(2, 3))
    return output
