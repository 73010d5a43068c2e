"""Encodes long texts with T5, BERT or a language model, as one sequence of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import TextLayout
from katz_graph.host.transfer import to_device
from katz_graph.models.text.kinds import kind_of_module
from katz_graph.models.text.prompt import Token
from katz_graph.models.text.tokens import said


def encode_sequence(
    module: Any, tokenizer: Any, text: str, layout: TextLayout, length: int = 0
) -> tuple[Tensor, Tensor]:
    """Returns hidden states [1, T, D] of a text, with weights applied, and a mask [1, T], true for
    the text's tokens. Attention masks padding only if `length` is not 0, because the published
    models were trained so.
    """
    tokens = said(tokenizer, text, layout, length)
    whole = layout.padded_length(len(tokens), length)
    hidden, mask = _run(module, tokenizer, tokens, whole, layout, bool(length))
    if any(weight != 1.0 for _, weight in tokens):
        empty, _ = _run(module, tokenizer, said(tokenizer, "", layout), whole, layout, bool(length))
        hidden = weigh(hidden, empty, [weight for _, weight in tokens])
    return hidden, mask


def outputs(module: Any, ids: Tensor, **options: Any) -> Any:
    """Calls a text encoder on ids [B, T]. Passes a language model's causal mask as None, so that
    mask values are not inspected.
    """
    if kind_of_module(module).causal:
        options["attention_mask"] = {"full_attention": None}
    return module(ids, **options)


@torch.no_grad()
def _run(
    module: Any,
    tokenizer: Any,
    tokens: Sequence[Token],
    length: int,
    layout: TextLayout,
    masked: bool,
) -> tuple[Tensor, Tensor]:
    """Runs tokens, padded to `length`. Returns hidden states and mask."""
    missing = length - len(tokens)
    ids = [token for token, _ in tokens] + [tokenizer.pad_token_id] * missing
    attended = [True] * len(tokens) + [False] * missing
    given, mask = (to_device(torch.tensor([one]), module.device) for one in (ids, attended))
    options = {"attention_mask": mask.long()} if masked else {}
    states: tuple[Tensor, ...] = outputs(
        module, given, output_hidden_states=True, **options
    ).hidden_states
    return states[-layout.from_end], mask


def weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns (hidden - empty) · w + empty, for `hidden` and `empty` [1, T, D]. `weights` applies
    to the first tokens; others have weight 1.
    """
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    attended = torch.tensor(weights, dtype=hidden.dtype)
    factors[0, : len(weights), 0] = to_device(attended, hidden.device)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)
