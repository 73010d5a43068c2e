"""Encodes long texts with T5 or a language model: one sequence of tokens, whatever its length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.host.transfer import to_device
from katz_graph.models.text.kinds import KINDS
from katz_graph.models.text.prompt import Token
from katz_graph.models.text.tokens import sequence
from katz_graph.models.text.weighing import weigh
from katz_graph.recipe import TextLayout


def encode_sequence(module: Any, tokenizer: Any, text: str, layout: TextLayout) -> Tensor:
    """Returns hidden states [1, T, D] of a text, with its weights applied; what fills it up is
    read too, as the published models were trained.
    """
    tokens = sequence(tokenizer, text, layout)
    hidden = _run(module, tokens, layout)
    if any(weight != 1.0 for _, weight in tokens):
        empty = sequence(tokenizer, "", layout, least=len(tokens))
        hidden = weigh(hidden, _run(module, empty, layout), [weight for _, weight in tokens])
    return hidden


def outputs(module: Any, ids: Tensor, **options: Any) -> Any:
    """Calls a text encoder on ids [B, T]. A language model's tokens read those before them, which
    it need not find out by looking at a mask.
    """
    if KINDS[type(module).__name__].causal:
        options["attention_mask"] = {"full_attention": None}
    return module(ids, **options)


@torch.no_grad()
def _run(module: Any, tokens: Sequence[Token], layout: TextLayout) -> Tensor:
    ids = to_device(torch.tensor([[token for token, _ in tokens]]), module.device)
    states: tuple[Tensor, ...] = outputs(module, ids, output_hidden_states=True).hidden_states
    return states[-layout.from_end]
