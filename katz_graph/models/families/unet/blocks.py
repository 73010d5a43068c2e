"""Runs encoder, middle and decoder of a diffusers UNet as separate stages, over any range of
blocks. Together they are bit-equal to its `forward`.

Must not know samplers, guidance or devices. Skips are addressed by position: 0 is the output of
conv_in, then the outputs of each down block follow. A downsampler's output is the last of its block
but is read with the next block's skips.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

from torch import Tensor, cat

from katz_graph.core.errors import InputError
from katz_graph.ir.values import Features, Residuals, TextEncoding
from katz_graph.models.families.unet.attention import KeysValues
from katz_graph.models.families.unet.embedding import conditioned, step_embedding

if TYPE_CHECKING:
    from katz_graph.ir.values import Step
    from katz_graph.models.active import Layers

SkipHook = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Maps (up block, hidden [B, C, h, w], skip [B, C', h, w]) to a new hidden state and skip before
their concatenation.
"""


def encode(
    unet: Any,
    start: Step | Features,
    text: TextEncoding,
    cached: KeysValues | None = None,
    first_block: int = 0,
    last_block: int | None = None,
    added: Tensor | None = None,
    concatenated: Tensor | None = None,
    layers: Layers | None = None,
) -> Features:
    """Runs down blocks first..last (None: to the end) from a step's model input, or from features
    that end right before first_block.

    cached: from `cross_attention_keys_values`; added: from `added_embedding`; concatenated: extra
    input channels [B, C', h, w]; layers: what transformer layers read from a template. Raises
    InputError if the range does not fit.
    """
    blocks = _range("UNetEncoder", first_block, last_block, len(unet.down_blocks))
    if isinstance(start, Features):
        state = start
        done = _skips_until(unet, blocks.start)
        if len(state.skips) != done:
            raise InputError(
                f"UNetEncoder: first_block is {first_block}, but the linked features do not end "
                f"right before it: they have {len(state.skips)} skips, expected {done}; set "
                "first_block to the block after the last one that the features went through"
            )
    else:
        if blocks.start != 0:
            raise InputError(
                f"UNetEncoder: first_block is {first_block}, but a step is linked, and steps enter "
                "at block 0: set first_block to 0, or link features of an encoder that ran the "
                "blocks before it"
            )
        sample = start.model_input.to(unet.conv_in.weight.dtype)
        if concatenated is not None:
            sample = cat([sample, concatenated.to(sample)], dim=1)
        hidden = unet.conv_in(sample)
        state = Features(
            hidden, step_embedding(unet, sample, start.timestep, text, added), (hidden,), start
        )
    hidden, skips = state.hidden, state.skips
    for block in (unet.down_blocks[index] for index in blocks):
        arguments = conditioned(text, cached, layers) if has_cross_attention(block) else {}
        hidden, new = block(hidden_states=hidden, temb=state.embedding, **arguments)
        skips += new
    return replace(state, hidden=hidden, skips=skips)


def mid(
    unet: Any,
    features: Features,
    text: TextEncoding,
    cached: KeysValues | None = None,
    layers: Layers | None = None,
) -> Features:
    """Runs the middle block on the output of the last down block."""
    if unet.mid_block is None:
        return features
    arguments = conditioned(text, cached, layers) if has_cross_attention(unet.mid_block) else {}
    return replace(
        features, hidden=unet.mid_block(features.hidden, features.embedding, **arguments)
    )


def decode(
    unet: Any,
    features: Features,
    text: TextEncoding,
    cached: KeysValues | None = None,
    skips: Features | None = None,
    residuals: Sequence[Residuals] = (),
    first_block: int = 0,
    last_block: int | None = None,
    on_skip: SkipHook | None = None,
    read: Sequence[Tensor] | None = None,
    layers: Layers | None = None,
) -> tuple[Features, Tensor | None]:
    """Runs up blocks first..last (None: to the end). Also returns the model's raw prediction [B, C,
    h, w] if the range includes the last block.

    `features.hidden` is the output of the middle block, or of the block before first_block. Skips,
    embedding and step come from `skips` if set, else from `features`. Residuals are summed in order
    and added to each skip that is read, and to the hidden state if first_block is 0. The returned
    features carry the unmodified skips, so each range of blocks needs the residuals. `read`: the
    skips to read, if residuals were added to them before (`with_residuals`). Raises InputError if
    range, skips or widths do not fit.
    """
    blocks = _range("UNetDecoder", first_block, last_block, len(unet.up_blocks))
    source = skips or features
    hidden = _first_hidden(features, residuals, first_block)
    for index in blocks:
        positions = skip_range(unet, index)
        if positions.stop > len(source.skips):
            raise InputError(
                f"UNetDecoder: block {index} reads skips up to position {positions[-1]}, the "
                f"features have {len(source.skips)}: "
                "encode further down, or begin at a later block"
            )
        taken = [_skip(read or source.skips, position, residuals) for position in positions]
        hidden = _up(
            unet.up_blocks[index],
            index,
            hidden,
            taken,
            _upsample_size(unet, index, source),
            source.embedding,
            conditioned(text, cached, layers),
            on_skip,
        )
    state = replace(source, hidden=hidden)
    if blocks.stop < len(unet.up_blocks):
        return state, None
    if unet.conv_norm_out:
        hidden = unet.conv_act(unet.conv_norm_out(hidden))
    return state, unet.conv_out(hidden)


def with_residuals(
    features: Features,
    skips: Features | None,
    residuals: Sequence[Residuals],
    first_block: int,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Returns the hidden state and the skips as `decode` reads them, with the residuals added."""
    source = (skips or features).skips
    read = tuple(_skip(source, position, residuals) for position in range(len(source)))
    return _first_hidden(features, residuals, first_block), read


def _first_hidden(features: Features, residuals: Sequence[Residuals], first_block: int) -> Tensor:
    if not residuals or first_block != 0:
        return features.hidden
    return features.hidden + _sum([one.mid for one in residuals])


def _skip(skips: Sequence[Tensor], position: int, residuals: Sequence[Residuals]) -> Tensor:
    if not residuals:
        return skips[position]
    return skips[position] + _sum([one.down[position] for one in residuals])


def skip_range(unet: Any, up_block: int) -> range:
    """Returns the positions of an up block's skips; the block reads the highest first."""
    end = _skips_until(unet, len(unet.down_blocks)) - sum(
        len(block.resnets) for block in unet.up_blocks[:up_block]
    )
    return range(end - len(unet.up_blocks[up_block].resnets), end)


def has_cross_attention(block: Any) -> bool:
    return getattr(block, "has_cross_attention", False)


def _up(
    block: Any,
    index: int,
    hidden: Tensor,
    skips: list[Tensor],
    upsample_size: Any,
    embedding: Tensor,
    condition: dict[str, Any],
    on_skip: SkipHook | None,
) -> Tensor:
    """Runs a diffusers up block; the hook may change hidden state and skip before concatenation."""
    attentions = block.attentions if has_cross_attention(block) else [None] * len(block.resnets)
    for resnet, attention, skip in zip(block.resnets, attentions, reversed(skips), strict=True):
        if (
            hidden.shape[1] + skip.shape[1] != resnet.in_channels
            or hidden.shape[2:] != skip.shape[2:]
        ):
            raise InputError(
                f"UNetDecoder: block {index} takes {resnet.in_channels} channels, hidden "
                f"{list(hidden.shape)} and skip {list(skip.shape)} do not match: link the "
                "features directly before this block"
            )
        if on_skip is not None:
            hidden, skip = on_skip(index, hidden, skip)
        hidden = resnet(cat([hidden, skip], dim=1), embedding)
        if attention is not None:
            hidden = attention(hidden, **condition, return_dict=False)[0]
    for upsampler in block.upsamplers or ():
        hidden = upsampler(hidden, upsample_size)
    return hidden


def _upsample_size(unet: Any, index: int, source: Features) -> Any:
    """Returns the size of the next skip if the latent does not halve evenly at each level, else
    None (twice the size), as in diffusers.
    """
    even = all(side % 2**unet.num_upsamplers == 0 for side in source.skips[0].shape[2:])
    if even or index == len(unet.up_blocks) - 1:
        return None
    return source.skips[skip_range(unet, index + 1).stop - 1].shape[2:]


def _skips_until(unet: Any, block: int) -> int:
    return 1 + sum(
        len(one.resnets) + len(one.downsamplers or ()) for one in unet.down_blocks[:block]
    )


def _range(node: str, first: int, last: int | None, count: int) -> range:
    last = count - 1 if last is None or last == -1 else last
    if not 0 <= first <= last < count:
        raise InputError(
            f"{node}: blocks {first} to {last} do not exist: expected 0 <= first_block <= "
            f"last_block <= {count - 1}"
        )
    return range(first, last + 1)


def _sum(tensors: list[Tensor]) -> Tensor:
    return reduce(add, tensors)
