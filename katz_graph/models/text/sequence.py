"""Encodes long texts with T5, BERT or a language model, as one sequence of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import Fill, TextLayout
from katz_graph.host.transfer import to_device
from katz_graph.models.text.kinds import kind_of_module
from katz_graph.models.text.pictures import Shown
from katz_graph.models.text.prompt import Said, Slot
from katz_graph.models.text.tokens import dropped, said, with_fill
from katz_graph.models.text.tower import NOTHING, hidden_states


def encode_sequence(
    module: Any,
    tokenizer: Any,
    text: str,
    layout: TextLayout,
    length: int = 0,
    pictures: Sequence[Shown] = (),
) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Returns hidden states [1, T, D] of a text, with weights applied; a mask [1, T], true for the
    text's tokens; and the tokens that are rows of pictures. `pictures`: those before the text, with
    their rows.
    """
    tokens, fill = said(tokenizer, text, layout, length, pictures), layout.filled(length)
    whole = fill.length(len(tokens))
    hidden, mask = _run(module, tokenizer, tokens, whole, fill, layout, pictures)
    if any(weight != 1.0 for _, weight in tokens):
        empty, _ = _run(module, tokenizer, said(tokenizer, "", layout), whole, fill, layout)
        hidden = weigh(hidden, empty, [weight for _, weight in tokens])
    first = dropped(tokenizer, tokens, layout)
    before = (whole - len(tokens) if fill.left else 0) - first
    slots = (place for place, (token, _) in enumerate(tokens) if isinstance(token, Slot))
    return hidden[:, first:], mask[:, first:], tuple(before + place for place in slots)


def last_state(module: Any, ids: Tensor) -> Tensor:
    """Returns the last hidden state [B, T, D] of tokens [B, T], normed if the model has a norm."""
    if kind_of_module(module).causal:
        layout = TextLayout(raw=module.norm is None)
        return hidden_states(module, module.embed_tokens(ids), layout)
    hidden: Tensor = module(ids).last_hidden_state
    return hidden


@torch.no_grad()
def _run(
    module: Any,
    tokenizer: Any,
    tokens: Sequence[Said],
    length: int,
    fill: Fill,
    layout: TextLayout,
    pictures: Sequence[Shown] = (),
) -> tuple[Tensor, Tensor]:
    """Runs tokens, filled up to `length`. Returns hidden states and mask."""
    missing, pad = length - len(tokens), tokenizer.pad_token_id
    ids = [pad if isinstance(token, Slot) else token for token, _ in tokens]
    ids, attended = (
        with_fill(values, [other] * missing, fill)
        for values, other in ((ids, pad), ([True] * len(tokens), False))
    )
    given, mask = (to_device(torch.tensor([one]), module.device) for one in (ids, attended))
    if kind_of_module(module).causal:
        masks = mask if fill.masked and missing else None
        positions = to_device(positions_of(tokens, missing, fill, pictures), module.device)
        embedded = module.embed_tokens(given)
        slots = [isinstance(token, Slot) for token, _ in tokens]
        embedded, deep = with_rows(embedded, slots, missing if fill.left else 0, pictures)
        return hidden_states(module, embedded, layout, positions, masks, deep), mask
    options = {"attention_mask": mask.long()} if fill.masked else {}
    return module(given, **options).last_hidden_state, mask


def positions_of(
    tokens: Sequence[Said], missing: int, fill: Fill, pictures: Sequence[Shown]
) -> Tensor:
    """Returns the positions [1, T] of filled tokens; with pictures [3, 1, T], for time, row and
    column: all rows of a picture are at one time, and the text continues after its longer side.
    """
    first = missing if fill.left and fill.position is None else 0
    counted, then = [], first
    for token, _ in tokens:
        if not isinstance(token, Slot):
            counted.append((then, then, then))
            then += 1
            continue
        picture = pictures[token.picture]
        row, column = divmod(token.row, picture.columns)
        counted.append((then, then + row, then + column))
        if token.row + 1 == picture.length:
            then += max(picture.rows, picture.columns)
    pads = range(0 if fill.left else then, missing + (0 if fill.left else then))
    others = pads if fill.position is None else [fill.position] * missing
    found = torch.tensor(with_fill(counted, [(one, one, one) for one in others], fill))
    return found.T[:, None] if pictures else found.T[:1]


def with_rows(
    embedded: Tensor, slots: Sequence[bool], before: int, pictures: Sequence[Shown]
) -> tuple[Tensor, Mapping[int, tuple[Tensor, Tensor]]]:
    """Returns embedded tokens [1, T, D] with the rows of pictures in their slots, `before` tokens
    later, and the rows to add to the outputs of the first layers.
    """
    seen = [picture.seen for picture in pictures if picture.seen is not None]
    if not seen:
        return embedded, NOTHING
    places = [before + place for place, is_slot in enumerate(slots) if is_slot]
    where = to_device(torch.tensor(places), embedded.device)
    rows = torch.cat([one.hidden for one in seen], dim=1).to(embedded)
    deep = zip(*(one.deep for one in seen), strict=True)
    return embedded.index_copy(1, where, rows), {
        number: (where, torch.cat(parts, dim=1).to(embedded))
        for number, parts in enumerate(deep, start=1)
    }


def weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns (hidden - empty) · w + empty, for `hidden` and `empty` [1, T, D]. `weights` applies
    to the first tokens; others have weight 1.
    """
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    attended = torch.tensor(weights, dtype=hidden.dtype)
    factors[0, : len(weights), 0] = to_device(attended, hidden.device)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)
