"""From a prompt to what a UNet takes: tokens, chunks, the right layer of each encoder, weights.

An unweighted prompt of up to 75 tokens gives what diffusers' pipelines give, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.errors import InputError
from katz_graph.models.features import TextEncoding
from katz_graph.models.prompt import Token, weighted_segments
from katz_graph.models.tokens import row_length, token_rows

OPEN_CLIP_LAYERS = 24  # of SD2's text encoder as it was trained; diffusers' folders leave out the last


@dataclass(frozen=True, slots=True)
class Layer:
    """Which hidden state is taken: the n-th from the end, with or without the encoder's final norm."""

    from_end: int  # 1 is the last layer's output
    normed: bool


def encode(encoders: Sequence[tuple[Any, Any]], text: str, last_layer: int | None = None) -> TextEncoding:
    """Encode a prompt with one (text encoder, tokenizer), SD1 and SD2, or two, SDXL: [1, 77 · chunks, D], for SDXL with pooled text.

    last_layer: -1 is the last layer of the encoder as it was trained, -2 the one before; beyond the first it is the last again. None is
    the family's own. The pooled text is the first chunk's. InputError for a last_layer that is not negative.
    """
    if last_layer is not None and last_layer >= 0:
        raise InputError(f"stop_at_clip_layer is {last_layer}, expected a negative number: -1 is the last layer")
    segments = weighted_segments(text)
    rows = [token_rows(tokenizer, module.config.max_position_embeddings, segments) for module, tokenizer in encoders]
    longest = max(len(one) for one in rows)
    pair = len(encoders) > 1
    encoded = [
        _encode(module, tokenizer, [*one, *[[]] * (longest - len(one))], _layer(module.config, pair, last_layer))
        for (module, tokenizer), one in zip(encoders, rows, strict=True)
    ]
    hidden = torch.cat([states for states, _ in encoded], dim=-1)
    return TextEncoding(hidden, pooled=encoded[-1][1] if pair else None)


def with_sizes(encoding: TextEncoding, height: int, width: int) -> TextEncoding:
    """An SDXL encoding for a picture of this size in pixels: as if drawn at it, uncropped. Other models' encodings stay as they are."""
    if encoding.pooled is None:
        return encoding
    numbers = [height, width, 0, 0, height, width]
    return replace(encoding, sizes=encoding.hidden.new_tensor([numbers]).expand(encoding.hidden.shape[0], -1).contiguous())


def _layer(config: Any, pair: bool, last_layer: int | None) -> Layer:
    """SD1: the last. SDXL: the last but one of both, without norm. SD2: the last but one as trained, the last in diffusers' folders."""
    absent = 1 if not pair and config.hidden_act == "gelu" and config.num_hidden_layers != OPEN_CLIP_LAYERS else 0
    if last_layer is None:
        last_layer = -2 if pair or config.hidden_act == "gelu" else -1
    if -last_layer > config.num_hidden_layers + absent:
        return Layer(1, normed=True)
    return Layer(max(1, -last_layer - absent), normed=not pair)


def _encode(module: Any, tokenizer: Any, rows: Sequence[Sequence[Token]], layer: Layer) -> tuple[Tensor, Tensor | None]:
    """Hidden states [1, length · rows, D] with weights applied, and the first row's projected pooled text, if the encoder projects.

    A token's state is weighed against the empty prompt's at its place: (z - z_empty) · w + z_empty.
    """
    runs = [_run(module, tokenizer, [token for token, _ in row], layer) for row in rows]
    states, pooled = [hidden for hidden, _ in runs], runs[0][1]
    if any(weight != 1.0 for row in rows for _, weight in row):
        empty, _ = _run(module, tokenizer, [], layer)
        states = [_weigh(hidden, empty, [1.0, *(weight for _, weight in row)]) for hidden, row in zip(states, rows, strict=True)]
    return torch.cat(states, dim=1), pooled


def _weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    factors[0, : len(weights), 0] = hidden.new_tensor(weights)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)


def _run(module: Any, tokenizer: Any, tokens: Sequence[int], layer: Layer) -> tuple[Tensor, Tensor | None]:
    """One row through one encoder: hidden states [1, length, D] and, if it projects, pooled text [1, P]."""
    ids = [tokenizer.bos_token_id, *tokens, tokenizer.eos_token_id]
    ids += [tokenizer.pad_token_id] * (row_length(tokenizer, module.config.max_position_embeddings) - len(ids))
    with torch.no_grad():
        output = module(torch.tensor([ids], device=module.device), output_hidden_states=True)
        hidden = output.hidden_states[-layer.from_end]
        if layer.normed:
            hidden = getattr(module, "text_model", module).final_layer_norm(hidden)
    return hidden, getattr(output, "text_embeds", None)
