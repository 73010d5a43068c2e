"""Computes the common parts of joint transformers' blocks with our kernels, see `prepare`.

Text and picture tokens attend together. Unfused, on a CPU, the library's attention computes that,
and everything is bit-equal to the library. Fused, the products of both write into one tensor of
queries, keys and values, where the head norms work in place; attention reads views. Values read and
written by FLUX.1's blocks for N tokens of width C, in units of N · C, without products and
attention itself:

| | library | here |
|---|--:|--:|
| norm with modulation | 6 | 2 |
| joining queries, keys and values | 6 | 0 |
| head norms | 4 | with positions |
| positions | 32, mostly in float32 | 4 |
| gated residual, then norm with modulation | 11 | 4 |
| gated residual | 5 | 3 |
| GELU of a feed-forward of 4 C | 8 | 8 |
| single blocks: joining text and picture | 2 | 0, after the first block |
| single blocks: GELU, joining with attention's output | 18 | 10 |

Blocks that compute active tokens only (`models.active`) write queries, and keys with values, into
one tensor each, on a CPU too. They equal the library within rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.models.normalization import AdaLayerNormContinuous
from torch import Tensor, nn

from katz_graph.kernels.head_norm import HeadNorm, Rotary, head_norm
from katz_graph.kernels.modulated_norm import Gated, gated_norm, gated_residual, modulated_norm
from katz_graph.models.active import Active, ActiveBlock
from katz_graph.models.lora_layers import has_row_loras
from katz_graph.models.prepared.modulations import ModulatedBlock
from katz_graph.models.projections import FusedProjections, Fusible, Projections
from katz_graph.models.quantised_weight import wide

Part = tuple[Tensor, FusedProjections]
"""Tokens [B, N, C] with the projections to their queries, keys and values."""
ActivePart = tuple[Tensor, Tensor, Projections]
"""Active tokens [B, A, C], which have queries; all tokens [B, N, C], which have keys and values;
and the projections to queries, keys and values.
"""


class PreparedAdaLayerNormContinuous(AdaLayerNormContinuous):  # type: ignore[misc]
    """Normalises tokens [B, N, C] with a modulation by an embedding [B, E]."""

    @staticmethod
    def unsupported(norm: Any) -> str:
        plain = isinstance(norm.norm, nn.LayerNorm) and not norm.norm.elementwise_affine
        return "" if plain else "norm with weights or without a mean"

    def forward(self, x: Tensor, conditioning_embedding: Tensor) -> Tensor:
        emb = self.linear(self.silu(conditioning_embedding).to(x.dtype))
        scale, shift = emb.chunk(2, dim=1)
        return modulated_norm(x, [(scale, shift)], self.norm.eps)[0]


class JointBlock(ModulatedBlock, Fusible, ActiveBlock):
    """A prepared block with separate weights for picture and text tokens."""

    attn: Any
    norm1: Any
    norm1_context: Any
    picture: FusedProjections | None = None
    text: FusedProjections | None = None

    def modulated(self) -> Sequence[Any]:
        return self.norm1, self.norm1_context

    def fuse(self) -> None:
        picture, text = self.layers()
        self.picture, self.text = FusedProjections.of(*picture), FusedProjections.of(*text)
        self.fuse_modulations()

    def layers(self) -> tuple[tuple[nn.Linear, ...], tuple[nn.Linear, ...]]:
        """Returns the projections to queries, keys and values of picture tokens, and of text."""
        one = self.attn
        return (one.to_q, one.to_k, one.to_v), (one.add_q_proj, one.add_k_proj, one.add_v_proj)

    def active_parts(
        self, active: Tensor, picture: Tensor, text: Tensor
    ) -> tuple[ActivePart, ActivePart]:
        """Returns picture and text: active tokens [B, A, C] of a picture [B, N, C], and all of a
        text [B, T, C].
        """
        of_picture, of_text = map(Projections, self.layers(), (self.picture, self.text))
        return (active, picture, of_picture), (text, text, of_text)


def fed_forward(
    hidden: Tensor,
    terms: Sequence[Gated],
    vectors: Sequence[Tensor],
    norm: nn.LayerNorm,
    feed_forward: Callable[[Tensor], Tensor],
) -> Tensor:
    """Adds gated terms, and then the gated feed-forward of the normalised sum. `vectors`: shift,
    scale and gate [B, C].
    """
    shift, scale, gate = vectors
    hidden, normalised = gated_norm(hidden, terms, (scale, shift), norm.eps)
    return gated_residual(hidden, (gate, feed_forward(normalised)))


def attention(
    layer: Any,
    first: Part,
    last: Part | None,
    norms: Sequence[HeadNorm],
    rotary: Rotary | None = None,
) -> Tensor:
    """Returns the attention [B, N, C] among the tokens of one or two parts, in this order.

    `norms`: of the heads, for each part; empty if the layer has none.
    """
    end = first[0].shape[1]
    if last is None:
        whole = first[1].whole(first[0])
    else:
        batch, tokens, _ = last[0].shape
        whole = last[0].new_empty(batch, end + tokens, sum(last[1].widths))
        first[1].into(first[0], whole[:, :end])
        last[1].into(last[0], whole[:, end:])
    if norms:
        head_norm(whole, layer.heads, norms[0], norms[-1], end, rotary)
    return attended(whole.chunk(3, dim=-1), layer.heads)


def active_attention(
    layer: Any,
    parts: Sequence[ActivePart],
    norms: Sequence[HeadNorm],
    rotary: Rotary | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Returns the attention [B, A, C] of the active tokens of one or two parts, in this order, to
    all tokens.

    `norms`: as for `attention`. `positions` [B, A] int64: those of the last part's active tokens
    among its tokens, for rotary positions.
    """
    # one product for all rows: those of one row are few
    queries = torch.cat([layers.part(0, 1).whole(active) for active, _, layers in parts], dim=1)
    keys_values = _outputs([(tokens, layers.part(1, 3)) for _, tokens, layers in parts])
    if norms:
        active, tokens, _ = parts[0]
        query, key = ((norms[0].one(one), norms[-1].one(one)) for one in (0, 1))
        head_norm(queries, layer.heads, *query, active.shape[1], rotary, positions)
        head_norm(keys_values, layer.heads, *key, tokens.shape[1], rotary)
    return attended((queries, *keys_values.chunk(2, dim=-1)), layer.heads)


def text_first(
    block: JointBlock,
    picture: Tensor,
    text: Tensor,
    rotary: Rotary | None,
    active: Active | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns the projected attention of picture and text tokens, in the order text, picture. The
    block is fused, unless `active` limits the picture tokens to compute.
    """
    layer, end = block.attn, text.shape[1]
    norms = head_norms((layer.norm_added_q, layer.norm_added_k), (layer.norm_q, layer.norm_k))
    if active is None:
        assert block.picture is not None and block.text is not None
        parts = (text, block.text), (picture, block.picture)
        mixed = attention(layer, *parts, norms, rotary)
        text_mixed, picture_mixed = mixed[:, :end], mixed[:, end:]
    else:
        of_picture, of_text = block.active_parts(active.taken(picture), picture, text)
        parts_of = (of_text, of_picture)
        mixed = active_attention(layer, parts_of, norms, rotary, active.positions)
        text_mixed, picture_mixed = apart(mixed, end)
    return (
        layer.to_out[1](linear_by_row(layer.to_out[0], picture_mixed)),
        linear_by_row(layer.to_add_out, text_mixed),
    )


def apart(mixed: Tensor, end: int) -> tuple[Tensor, Tensor]:
    """Returns copies of the tokens of [B, A, C] before `end`, and of the others, so that one
    product computes all rows.
    """
    return mixed[:, :end].contiguous(), mixed[:, end:].contiguous()


def _outputs(parts: Sequence[tuple[Tensor, Projections]]) -> Tensor:
    """Returns the outputs of layers for the tokens of one or two parts."""
    x, layers = parts[0]
    if len(parts) == 1:
        return layers.whole(x)
    counts = [tokens.shape[1] for tokens, _ in parts]
    whole = x.new_empty(len(x), sum(counts), layers.width)
    for (tokens, each), place in zip(parts, whole.split_with_sizes(counts, dim=1), strict=True):
        each.into(tokens, place)
    return whole


def attended(parts: Sequence[Tensor], heads: int) -> Tensor:
    """Returns the attention [B, A, C] of queries [B, A, C] to keys and values [B, N, C]."""
    query, key, value = (torch.unflatten(one, -1, (heads, -1)).transpose(1, 2) for one in parts)
    mixed = F.scaled_dot_product_attention(query, key, value)
    return mixed.transpose(1, 2).flatten(2)


def linear_by_row(layer: nn.Linear, x: Tensor) -> Tensor:
    """Returns a layer's output for tokens [B, N, C] that are parts of more tokens, row by row: they
    are not copied first.
    """
    if x.is_contiguous() or type(layer) is not nn.Linear or has_row_loras(layer):
        made: Tensor = layer(x)
        return made
    made = x.new_empty(*x.shape[:2], layer.out_features)
    weight = wide(layer.weight).T
    for row, place in zip(x, made, strict=True):
        torch.addmm(layer.bias, row, weight, out=place)
    return made


def head_norms(*pairs: tuple[Any, Any]) -> list[HeadNorm]:
    """Returns the weights of the query's and key's norms of each part; empty without norms."""
    return [
        HeadNorm((query.weight, key.weight), query.eps, type(query) is not nn.RMSNorm)
        for query, key in pairs
        if query is not None
    ]


def joined(first: Tensor, last: Tensor) -> Tensor:
    """Returns [B, M + N, C] of [B, M, C] and [B, N, C]; without a copy if they are parts of it."""
    batch, tokens, width = first.shape
    size = batch, tokens + last.shape[1], width
    strides = size[1] * width, width, 1
    adjacent = (
        first.untyped_storage()._cdata == last.untyped_storage()._cdata
        and first.stride() == last.stride() == strides
        and last.storage_offset() == first.storage_offset() + tokens * width
    )
    return first.as_strided(size, strides) if adjacent else torch.cat([first, last], dim=1)


def other_processor(layer: Any, name: str) -> str:
    """Returns the reason if an attention layer has another processor than the named one."""
    found = type(layer.processor).__name__
    return "" if found == name else f"attention processor {found}"


def limited(x: Tensor) -> Tensor:
    """Limits float16 as diffusers does."""
    return x.clip(-65504, 65504) if x.dtype == torch.float16 else x
