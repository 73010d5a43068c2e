"""From a prompt to rows of tokens, and how long its encoding will be. Loads tokenizers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katz_graph.models.family import config
from katz_graph.models.load import load_tokenizer
from katz_graph.models.prompt import Token, chunks, weighted_segments
from katz_graph.recipe import ClipRecipe


def token_rows(tokenizer: Any, positions: int, segments: Sequence[tuple[str, float]]) -> list[list[Token]]:
    """Weighted tokens in rows that leave room for the start and end tokens; `positions` is the encoder's longest row."""
    tokens = [[(token, weight) for token in tokenizer(text, verbose=False).input_ids[1:-1]] for text, weight in segments]
    return chunks(tokens, row_length(tokenizer, positions) - 2)


def row_length(tokenizer: Any, positions: int) -> int:
    """Tokens of one row, start and end included: 77 for CLIP."""
    return int(min(tokenizer.model_max_length, positions))


def encoding_length(clip: ClipRecipe, text: str) -> int:
    """T of the encoding [1, T, D] of a prompt: whole rows, as many as the encoder with the most needs."""
    segments = weighted_segments(text)
    lengths = []
    for encoder in clip.encoders:
        tokenizer, positions = load_tokenizer(encoder.tokenizer), config(encoder.encoder).get("max_position_embeddings", 77)
        lengths.append(len(token_rows(tokenizer, positions, segments)) * row_length(tokenizer, positions))
    return max(lengths)
