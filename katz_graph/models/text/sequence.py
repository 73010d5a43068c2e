"""Encodes long texts with T5, BERT or a language model, as one sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import Fill, TextLayout
from katz_graph.host.transfer import to_device
from katz_graph.models.text.kinds import kind_of_module
from katz_graph.models.text.prompt import Token
from katz_graph.models.text.tokens import dropped, said, with_fill
from katz_graph.models.text.tower import hidden_states


def encode_sequence(
    module: Any, tokenizer: Any, text: str, layout: TextLayout, length: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns hidden states [1, T, D] of a text, with weights applied, and a mask [1, T], true for
    the text's tokens.
    """
    tokens, fill = said(tokenizer, text, layout, length), layout.filled(length)
    whole = fill.length(len(tokens))
    hidden, mask = _run(module, tokenizer, tokens, whole, fill, layout)
    if any(weight != 1.0 for _, weight in tokens):
        empty, _ = _run(module, tokenizer, said(tokenizer, "", layout), whole, fill, layout)
        hidden = weigh(hidden, empty, [weight for _, weight in tokens])
    first = dropped(tokenizer, tokens, layout)
    return hidden[:, first:], mask[:, first:]


def last_state(module: Any, ids: Tensor) -> Tensor:
    """Returns the last hidden state [B, T, D] of tokens [B, T]."""
    if kind_of_module(module).causal:
        return hidden_states(module, module.embed_tokens(ids))
    hidden: Tensor = module(ids).last_hidden_state
    return hidden


@torch.no_grad()
def _run(
    module: Any,
    tokenizer: Any,
    tokens: Sequence[Token],
    length: int,
    fill: Fill,
    layout: TextLayout,
) -> tuple[Tensor, Tensor]:
    """Runs tokens, filled up to `length`. Returns hidden states and mask."""
    missing = length - len(tokens)
    ids = with_fill([token for token, _ in tokens], tokenizer.pad_token_id, missing, fill)
    places = list(range(length))
    if fill.position is not None:
        places = with_fill(range(len(tokens)), fill.position, missing, fill)
    attended = with_fill([True] * len(tokens), False, missing, fill)
    given, positions, mask = (
        to_device(torch.tensor([one]), module.device) for one in (ids, places, attended)
    )
    if kind_of_module(module).causal:
        masks = mask if fill.masked and missing else None
        embedded = module.embed_tokens(given)
        return hidden_states(module, embedded, layout, positions, masks), mask
    options = {"attention_mask": mask.long()} if fill.masked else {}
    return module(given, **options).last_hidden_state, mask


def weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns (hidden - empty) · w + empty, for `hidden` and `empty` [1, T, D]. `weights` applies
    to the first tokens; others have weight 1.
    """
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    attended = torch.tensor(weights, dtype=hidden.dtype)
    factors[0, : len(weights), 0] = to_device(attended, hidden.device)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)
