"""Runs a language model of transformers on embedded tokens, layer by layer, and returns the hidden
states that a layout names. Bit-equal to the model's `forward`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import DEFAULT_LAYOUT, TextLayout

NOTHING: Mapping[int, tuple[Tensor, Tensor]] = MappingProxyType({})


def hidden_states(
    module: Any,
    embedded: Tensor,
    layout: TextLayout = DEFAULT_LAYOUT,
    positions: Tensor | None = None,
    attended: Tensor | None = None,
    deep: Mapping[int, tuple[Tensor, Tensor]] = NOTHING,
    cache: Any = None,
) -> Tensor:
    """Returns the states [B, T, D · number of states] of embedded tokens [B, T, D].

    positions: [B, T], counted by default, or [3, B, T] on the axes of pictures. attended: [B, T],
    false for tokens that no token attends to; None: all are attended to. deep: by number of a
    layer, places [N] and rows [B, N, D] that are added there to the layer's output, after its state
    was read. cache: transformers' keys and values of earlier tokens, which get those of these
    tokens. Layers after the last state are not computed.
    """
    if positions is None:
        positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    mask = None
    if attended is not None:
        places = torch.arange(embedded.shape[1], device=embedded.device)
        mask = (places[:, None] >= places)[None, None] & attended[:, None, None]
    last = len(module.layers)
    wanted = layout.states or (last + 1 - layout.from_end,)
    rotary = _rotary(module, embedded, positions)
    found = {0: embedded}
    hidden = embedded
    for number, layer in enumerate(module.layers[: max(wanted)], start=1):
        hidden = layer(
            hidden, attention_mask=mask, position_embeddings=rotary, past_key_values=cache
        )
        if number in wanted:
            found[number] = hidden
        if number in deep:
            hidden = hidden.index_add(1, *deep[number])
    if wanted == (last,) and not (layout.states or layout.raw):
        normed: Tensor = module.norm(hidden)
        return normed
    states = [found[number] for number in wanted]
    return states[0] if len(states) == 1 else torch.cat(states, dim=-1)


def _rotary(module: Any, embedded: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Returns cosines and sines [B, T, D] of positions. On three axes [3, B, T], each frequency
    takes the position on its axis.
    """
    cosines: Tensor
    sines: Tensor
    if positions.ndim == 2:
        cosines, sines = module.rotary_emb(embedded, positions)
        return cosines, sines
    axes = torch.tensor(module.config.rotary_axes * 2, device=embedded.device)
    cosines, sines = (
        values.reshape(*positions.shape, -1).gather(0, axes.expand(1, *positions.shape[1:], -1))[0]
        for values in module.rotary_emb(embedded, positions.flatten(0, 1))
    )
    return cosines, sines
