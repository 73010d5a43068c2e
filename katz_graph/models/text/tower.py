"""Runs a language model of transformers on embedded tokens, layer by layer, and returns the hidden
states that a layout names. Bit-equal to the model's `forward`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import DEFAULT_LAYOUT, TextLayout


def hidden_states(
    module: Any,
    embedded: Tensor,
    layout: TextLayout = DEFAULT_LAYOUT,
    positions: Tensor | None = None,
    attended: Tensor | None = None,
) -> Tensor:
    """Returns the states [B, T, D · number of states] of embedded tokens [B, T, D].

    positions: [B, T], counted by default. attended: [B, T], false for tokens that no token attends
    to; None: all are attended to. Layers after the last state are not computed.
    """
    if positions is None:
        positions = torch.arange(embedded.shape[1], device=embedded.device)[None]
    mask = None
    if attended is not None:
        places = torch.arange(embedded.shape[1], device=embedded.device)
        mask = (places[:, None] >= places)[None, None] & attended[:, None, None]
    last = len(module.layers)
    wanted = layout.states or (last + 1 - layout.from_end,)
    rotary = module.rotary_emb(embedded, positions)
    found = {0: embedded}
    hidden = embedded
    for number, layer in enumerate(module.layers[: max(wanted)], start=1):
        hidden = layer(hidden, attention_mask=mask, position_embeddings=rotary)
        if number in wanted:
            found[number] = hidden
    if wanted == (last,) and not (layout.states or layout.raw):
        normed: Tensor = module.norm(hidden)
        return normed
    states = [found[number] for number in wanted]
    return states[0] if len(states) == 1 else torch.cat(states, dim=-1)
