"""From a prompt to rows of tokens, and how long its encoding will be. Loads tokenizers only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from katz_graph.models.family import config
from katz_graph.models.learned import pieces, vectors
from katz_graph.models.prompt import Token, chunks, weighted_segments
from katz_graph.models.tokenizer import load_tokenizer
from katz_graph.recipe import Prompt


def token_rows(
    tokenizer: Any, positions: int, segments: Sequence[tuple[str, float]], learned: Mapping[str, int] | None = None
) -> list[list[Token]]:
    """Weighted tokens in rows that leave room for the start and end tokens; `positions` is the encoder's longest row.

    learned: how many vectors the textual inversions have that the prompt may name; a name that is not among them gives no tokens.
    """
    groups: list[list[Token]] = []
    for segment, weight in segments:
        for text, is_name in pieces(segment):
            if is_name:
                groups.append([((text, number), weight) for number in range((learned or {}).get(text, 0))])
            else:
                groups.append([(token, weight) for token in tokenizer(text, verbose=False).input_ids[1:-1]])
    return chunks(groups, row_length(tokenizer, positions) - 2)


def row_length(tokenizer: Any, positions: int) -> int:
    """Tokens of one row, start and end included: 77 for CLIP."""
    return int(min(tokenizer.model_max_length, positions))


def prompt_length(prompt: Prompt) -> int:
    """T of the encoding [1, T, D] of a prompt: whole rows, as many as the encoder with the most needs."""
    lengths = []
    texts = (prompt.text, prompt.text if prompt.text_2 is None else prompt.text_2)
    for number, (encoder, text) in enumerate(zip(prompt.clip.encoders, texts, strict=False)):
        tokenizer, values = load_tokenizer(encoder.tokenizer), config(encoder.encoder)
        positions, learned = values.get("max_position_embeddings", 77), vectors(prompt.clip.learned, number, values["hidden_size"])
        rows = token_rows(tokenizer, positions, weighted_segments(text), learned)
        lengths.append(len(rows) * row_length(tokenizer, positions))
    return max(lengths)
