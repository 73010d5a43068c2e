"""Builds example calls of UNet and ControlNet stages, on meta tensors to count their cost, or on a
device to time them.

Each function takes a module and sizes. It returns a call that returns the output tensors, and the
submodules that the call uses.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from katz_graph.ir.values import Features, Step, TextEncoding
from katz_graph.models.families.shared.example_inputs import drawn, features
from katz_graph.models.families.unet import attention
from katz_graph.models.families.unet import blocks as unet
from katz_graph.models.families.unet import control_blocks as controlnet
from katz_graph.models.families.unet.architecture import pooled_width
from katz_graph.models.families.unet.embedding import added_embedding
from katz_graph.models.stages import Example, Sized


def encode(module: Any, sizes: Sized) -> Example:
    step, text, cached, added = _given(module, sizes)
    first, last = sizes.first_block, sizes.last_block
    start: Features | Step = (
        unet.encode(module, step, text, cached, 0, first - 1, added) if first else step
    )
    done = len(start.skips) if isinstance(start, Features) else 0
    entry = [
        module.conv_in,
        module.time_embedding,
        *([module.add_embedding] if module.config.addition_embed_type else []),
    ]
    blocks = module.down_blocks[first : None if last is None else last + 1]

    def call() -> list[Tensor]:
        state = unet.encode(module, start, text, cached, first, last, added, layers=sizes.layers)
        return [state.hidden, *state.skips[done:]]

    return call, [*([] if first else entry), *blocks]


def mid(module: Any, sizes: Sized) -> Example:
    step, text, cached, added = _given(module, sizes)
    deep = unet.encode(module, step, text, cached, added=added)
    return (
        lambda: [unet.mid(module, deep, text, cached, sizes.layers).hidden],
        [module.mid_block],
    )


def decode(module: Any, sizes: Sized) -> Example:
    step, text, cached, added = _given(module, sizes)
    first, last = sizes.first_block, sizes.last_block
    middle = unet.mid(module, unet.encode(module, step, text, cached, added=added), text, cached)
    before = unet.decode(module, middle, text, cached, last_block=first - 1)[0] if first else middle
    stop = len(module.up_blocks) if last is None else last + 1
    final = [module.conv_norm_out, module.conv_out] if stop == len(module.up_blocks) else []

    def call() -> list[Tensor]:
        state, prediction = unet.decode(
            module,
            before,
            text,
            cached,
            first_block=first,
            last_block=last,
            layers=sizes.layers,
        )
        return [state.hidden if prediction is None else prediction]

    return call, [*module.up_blocks[first:stop], *final]


def keys_values(module: Any, sizes: Sized) -> Example:
    hidden = _text(module, sizes).hidden
    names = attention.cross_attention_keys_values(module, hidden)
    layers = [layer for name, layer in module.named_modules() if name in names]
    parts = [projection for layer in layers for projection in (layer.to_k, layer.to_v)]
    return lambda: tree_leaves(attention.cross_attention_keys_values(module, hidden)), parts


def reference(module: Any, sizes: Sized) -> Example:
    factor = 2 ** (len(module.config.conditioning_embedding_out_channels) - 1)
    image = features(module, sizes, 3, factor)
    return lambda: [controlnet.embed_reference(module, image)], [module.controlnet_cond_embedding]


def control(module: Any, sizes: Sized) -> Example:
    step, text, cached, added = _given(module, sizes)
    reference = features(module, sizes, module.config.block_out_channels[0])
    strength = torch.rand(sizes.batch, device=module.device)

    def call() -> list[Tensor]:
        residuals = controlnet.control(module, step, text, reference, strength, cached, added)
        return [*residuals.down, residuals.mid]

    return call, [_without(module, "controlnet_cond_embedding")]


def _given(module: Any, sizes: Sized) -> tuple[Step, TextEncoding, Any, Tensor | None]:
    """Returns a step, a text, its cross-attention keys and values, and the added embedding."""
    text = _text(module, sizes)
    cached = attention.cross_attention_keys_values(module, text.hidden) if sizes.cached else None
    sample = features(module, sizes, module.config.in_channels)
    return Step.of(sample, sample, 1.0, 1.0), text, cached, added_embedding(module, text)


def _text(module: Any, sizes: Sized) -> TextEncoding:
    config = module.config
    hidden = drawn(module, sizes, sizes.tokens, config.cross_attention_dim)
    if config.addition_embed_type is None:
        return TextEncoding(hidden)
    pooled = drawn(module, sizes, pooled_width(config))
    return TextEncoding(hidden, pooled, torch.ones(sizes.batch, 7, device=module.device))


def _without(module: nn.Module, name: str) -> nn.Module:
    return nn.ModuleList(child for other, child in module.named_children() if other != name)
