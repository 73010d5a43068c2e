"""Computes cross-attention keys and values once per text instead of at every step, for any
diffusers module with `Attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.nn.functional as F
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor, nn

from katz_graph.models.projections import FUSED

CROSS_ATTENTION = "cross_attention_layers"
"""Names the attribute of a module that holds its cross-attention layers by name."""
KeysValues = Mapping[str, tuple[Tensor, Tensor]]
"""Maps the name of a cross-attention layer to its projected key and value, [B, T, heads · head
width] each.
"""


class CachedKVAttention(AttnProcessor2_0):  # type: ignore[misc]
    """Computes scaled dot-product attention with precomputed keys and values from `cached`;
    computes those that are missing. Self-attention uses one matrix product for fused weights, or
    two if only some tokens have queries.

    The processor knows only its layer's name, so one module serves many requests. diffusers passes
    only arguments that the signature names, and warns about others. Hence the explicit parameter
    `cached`, also in self-attention layers.
    """

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.layer = layer

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        cached: KeysValues | None = None,
    ) -> Tensor:
        pair = cached.get(self.layer) if cached else None
        fused = getattr(attn, FUSED, None)
        if pair is not None:
            parts: tuple[Tensor, ...] = (attn.to_q(hidden_states), *pair)
        elif fused is not None and attention_mask is None:
            if encoder_hidden_states is None:
                parts = fused(hidden_states)
            else:  # queries of active tokens, to the keys of all
                query = fused.part(0, 1).whole(hidden_states)
                parts = (query, *fused.part(1, 3)(encoder_hidden_states))
        else:
            computed: Tensor = super().__call__(
                attn, hidden_states, encoder_hidden_states, attention_mask, temb
            )
            return computed

        def heads(x: Tensor) -> Tensor:  # [B, T, heads · width] -> [B, heads, T, width]
            return x.view(x.shape[0], -1, attn.heads, x.shape[-1] // attn.heads).transpose(1, 2)

        queries, keys, values = map(heads, parts)
        mixed = (
            F.scaled_dot_product_attention(queries, keys, values)
            .transpose(1, 2)
            .reshape(hidden_states.shape[0], -1, parts[0].shape[-1])
        )
        projected = attn.to_out[1](attn.to_out[0](mixed))
        if attn.residual_connection:
            projected = projected + hidden_states
        if attn.rescale_output_factor != 1.0:
            projected = projected / attn.rescale_output_factor
        result: Tensor = projected
        return result


def install(module: Any) -> None:
    """Installs the processor in every attention layer of a UNet or ControlNet."""
    module.set_attn_processor(
        {
            name: CachedKVAttention(name.removesuffix(".processor"))
            for name in module.attn_processors
        }
    )
    setattr(module, CROSS_ATTENTION, dict(_cross_attention_layers(module)))


def cross_attention_keys_values(
    module: nn.Module, text_hidden: Tensor
) -> dict[str, tuple[Tensor, Tensor]]:
    """Computes keys and values of all cross-attention layers for a text [B, T, D], bit-equal to
    those computed at every step.

    They are only valid for the current weight set.
    """
    return {
        name: (layer.to_k(text_hidden), layer.to_v(text_hidden))
        for name, layer in getattr(module, CROSS_ATTENTION, {}).items()
    }


def _cross_attention_layers(module: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, layer in module.named_modules():
        if isinstance(layer, Attention) and layer.is_cross_attention and not _normalises(layer):
            yield name, layer


def _normalises(layer: Any) -> bool:
    """Returns whether a layer norms the text or the keys; such layers compute their own keys."""
    return layer.norm_cross is not None or layer.norm_k is not None
