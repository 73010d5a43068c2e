"""Splits prompts into rows of tokens; predicts encodings' lengths. Loads tokenizers only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import transformers
from transformers.utils import logging

from katz_graph.errors import InputError
from katz_graph.messages import first_line
from katz_graph.models.configuration import config
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.text.prompt import Token, chunks, weighted_segments
from katz_graph.models.text.textual_inversion import pieces, vectors
from katz_graph.recipe import Component, Prompt


def token_rows(
    tokenizer: Any,
    positions: int,
    segments: Sequence[tuple[str, float]],
    learned: Mapping[str, int] | None = None,
) -> list[list[Token]]:
    """Returns weighted tokens in rows that leave room for the start and end tokens; `positions` is
    the encoder's longest row.

    learned: the number of vectors of the textual inversions that the prompt may name; a name that
    is not among them gives no tokens.
    """
    groups: list[list[Token]] = []
    for segment, weight in segments:
        for text, is_name in pieces(segment):
            if is_name:
                groups.append(
                    [((text, number), weight) for number in range((learned or {}).get(text, 0))]
                )
            else:
                groups.append(
                    [(token, weight) for token in tokenizer(text, verbose=False).input_ids[1:-1]]
                )
    return chunks(groups, row_length(tokenizer, positions) - 2)


def row_length(tokenizer: Any, positions: int) -> int:
    """Counts the tokens of one row, start and end included: 77 for CLIP."""
    return int(min(tokenizer.model_max_length, positions))


def prompt_length(prompt: Prompt) -> int:
    """Returns T of the encoding [1, T, D] of a prompt: whole rows, as many as the encoder with the
    most needs.
    """
    lengths = []
    texts = (prompt.text, prompt.text if prompt.text_2 is None else prompt.text_2)
    for number, (encoder, text) in enumerate(zip(prompt.clip.encoders, texts, strict=False)):
        tokenizer, values = load_tokenizer(encoder.tokenizer), config(encoder.encoder)
        positions = values.get("max_position_embeddings", 77)
        learned = vectors(prompt.clip.learned, number, values["hidden_size"])
        rows = token_rows(tokenizer, positions, weighted_segments(text), learned)
        lengths.append(len(rows) * row_length(tokenizer, positions))
    return max(lengths)


@lru_cache(maxsize=16)
def load_tokenizer(part: Component) -> Any:
    """Loads a CLIPTokenizer once. InputError when the files are not one."""
    with quiet(logging):
        try:
            return transformers.CLIPTokenizer.from_pretrained(
                part.folder, local_files_only=True, **json.loads(part.configuration or "{}")
            )
        except Exception as error:  # the tokenizers library raises bare Exception
            raise InputError(
                f"{part.folder}: cannot be loaded as CLIPTokenizer: {first_line(error)}"
            ) from error
