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
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.text.kinds import kind_of, positions_of, split, width_of
from katz_graph.models.text.prompt import Token, chunks, unescaped, weighted_segments
from katz_graph.models.text.textual_inversion import pieces, vectors
from katz_graph.recipe import Prompt, TextEncoderRecipe, TextLayout


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
    """Returns T of the encoding [1, T, D] of a prompt: of CLIP's encoders whole rows, as many as
    the one with the most needs, and the tokens of long texts behind them.
    """
    layout, in_rows, long = prompt.clip.layout, [0], 0
    clip, _ = split(prompt.clip.encoders)
    silent = all(number in prompt.absent for number in range(len(clip)))
    for number, encoder in enumerate(prompt.clip.encoders):
        text, tokenizer = prompt.text_of(number), load_tokenizer(encoder)
        if not kind_of(encoder.encoder).rows:
            long += 0 if number in prompt.absent else len(sequence(tokenizer, text, layout))
        elif layout.clip_rows and not silent:
            positions = positions_of(encoder.encoder)
            learned = vectors(prompt.clip.learned, number, width_of(encoder.encoder))
            rows = token_rows(tokenizer, positions, weighted_segments(text), learned)
            in_rows.append(len(rows) * row_length(tokenizer, positions))
    return max(in_rows) + long


def sequence(tokenizer: Any, text: str, layout: TextLayout, least: int = 0) -> list[Token]:
    """Returns the weighted tokens of a long text, with what ends it and fills it up to `least`, or
    what the layout has, whatever is more. A textual inversion gives no tokens; with a template
    there are no weights.
    """
    if layout.template:
        whole = layout.template.format(unescaped(text))
        tokens: list[Token] = [(token, 1.0) for token in tokenizer(whole, verbose=False).input_ids]
    else:
        pieces_of = (
            (piece, weight)
            for segment, weight in weighted_segments(text)
            for piece, is_name in pieces(segment)
            if piece and not is_name
        )
        tokens = [
            (token, weight)
            for piece, weight in pieces_of
            for token in tokenizer(piece, verbose=False).input_ids[:-1]
        ]
        tokens.append((tokenizer.eos_token_id, 1.0))
    missing = max(layout.least, least) - len(tokens)
    return tokens + [(tokenizer.pad_token_id, 1.0)] * missing


@lru_cache(maxsize=16)
def load_tokenizer(encoder: TextEncoderRecipe) -> Any:
    """Loads the tokenizer of a text encoder once. InputError when the files are not one."""
    part, name = encoder.tokenizer, kind_of(encoder.encoder).tokenizer
    with quiet(logging):
        try:
            return getattr(transformers, name).from_pretrained(
                part.folder, local_files_only=True, **json.loads(part.configuration or "{}")
            )
        except Exception as error:  # the tokenizers library raises bare Exception
            raise InputError(
                f"{part.folder}: cannot be loaded as {name}: {first_line(error)}"
            ) from error
