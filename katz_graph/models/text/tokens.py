"""Splits prompts into rows of tokens, and predicts the lengths of encodings."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import transformers
from transformers.utils import logging

from katz_graph.core.errors import InputError
from katz_graph.core.messages import first_line
from katz_graph.core.recipe import (
    DEFAULT_LAYOUT,
    Component,
    Encoding,
    Fill,
    Prompt,
    SeenPicture,
    TextEncoderRecipe,
    TextLayout,
)
from katz_graph.models.loading.component import SENTENCE_PIECES, VOCABULARIES
from katz_graph.models.loading.contents import read_bytes
from katz_graph.models.loading.identity import check_content, check_unchanged
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.text.kinds import (
    T5,
    EncoderKind,
    joined_length,
    kind_of,
    row_of,
    split,
    width_of,
)
from katz_graph.models.text.pictures import Shown, grid, shown, texts_around
from katz_graph.models.text.prompt import Said, Slot, Token, chunks, unescaped, weighted_segments
from katz_graph.models.text.recipe import TextSize, length
from katz_graph.models.text.sentence_pieces import sentence_piece_tokenizer
from katz_graph.models.text.tekken import tekken_tokenizer
from katz_graph.models.text.textual_inversion import pieces, vectors
from katz_graph.models.text.vocabularies import SHIPPED, TOKENIZERS

T = TypeVar("T")
TURN = "<|im_start|>{}"  # the start of a chat's turn


def token_rows(
    tokenizer: Any,
    row: int,
    segments: Sequence[tuple[str, float]],
    learned: Mapping[str, int] | None = None,
) -> list[list[Token]]:
    """Returns weighted tokens in rows, without start and end tokens. `row`: the length of an
    encoder's row, including these two.

    learned: the number of vectors of each available textual inversion; omits others.
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
    return chunks(groups, row - 2)


def encoded_length(encoding: Encoding | SeenPicture) -> int:
    """Returns T of an encoding [1, T, D], or the number of a picture's rows."""
    if isinstance(encoding, SeenPicture):
        return math.prod(grid(encoding.tower, encoding.picture))
    return length(encoding, prompt_length)


def prompt_length(prompt: Prompt) -> int:
    """Returns T of a prompt's encoding [1, T, D]: the whole rows of CLIP encoders plus the tokens
    of long texts.
    """
    layout, long = prompt.layout, 0
    in_rows: list[tuple[int, int]] = []
    clip, _ = split(prompt.clip.encoders)
    silent = all(number in prompt.absent for number in range(len(clip)))
    for number, encoder in enumerate(prompt.clip.encoders):
        if not kind_of(encoder.encoder).rows:
            text, tokenizer = prompt.text_of(number), load_tokenizer(encoder)
            if number not in prompt.absent or layout.lengths:
                tokens = said(tokenizer, text, layout, layout.length(number), shown(prompt, number))
                whole = layout.filled(layout.length(number)).length(len(tokens))
                long += whole - dropped(tokenizer, tokens, layout)
        elif layout.clip_rows and not silent:
            size = text_size(prompt, number)
            in_rows.append((size.chunks, size.most + 2))
    return joined_length(in_rows) + long


def text_size(prompt: Prompt, number: int) -> TextSize:
    """Returns the length of a prompt's text for the text encoder of this number."""
    encoder, text, layout = prompt.clip.encoders[number], prompt.text_of(number), prompt.layout
    tokenizer, kind = load_tokenizer(encoder), kind_of(encoder.encoder)
    if kind.rows:
        row = row_of(encoder.encoder)
        learned = vectors(prompt.clip.learned, number, width_of(encoder.encoder))
        rows = token_rows(tokenizer, row, weighted_segments(text), learned)
        return TextSize(kind.title, sum(map(len, rows)), len(rows), row - 2)
    around = len(said(tokenizer, "", layout)) - len(_ids(tokenizer, layout.empty))
    most = max(0, layout.length(number) - around)
    own = len(said(tokenizer, text, layout)) - around if text else 0
    return TextSize(kind.title, max(0, own), 0, most)


def sequence(tokenizer: Any, text: str, layout: TextLayout, length: int = 0) -> list[Said]:
    """Returns the tokens of `said`, filled as the layout says."""
    tokens, fill = said(tokenizer, text, layout, length), layout.filled(length)
    missing = fill.length(len(tokens)) - len(tokens)
    return with_fill(tokens, [(tokenizer.pad_token_id, 1.0)] * missing, fill)


def with_fill(values: Iterable[T], pads: Iterable[T], fill: Fill) -> list[T]:
    """Returns the values of a text's tokens with those of its pads before or after them."""
    return [*pads, *values] if fill.left else [*values, *pads]


def said(
    tokenizer: Any,
    text: str,
    layout: TextLayout,
    length: int = 0,
    pictures: Sequence[Shown] = (),
) -> list[Said]:
    """Returns the weighted tokens of a long text, including start and end tokens, at most `length`
    unless it is 0, and slots for the rows of pictures. Omits textual inversions. With a template,
    all weights are 1.
    """
    text = text or layout.empty
    if layout.template:
        return with_slots(tokenizer, texts_around(unescaped(text), layout, pictures), pictures)
    ends = tokenizer("").input_ids
    first, last = ends[:-1], ends[-1:]
    pieces_of = (
        (piece, 1.0 if layout.words else weight)
        for segment, weight in weighted_segments(text)
        for piece, is_name in pieces(segment)
        if piece and not is_name
    )
    tokens: list[Said] = [
        *((token, 1.0) for token in first),
        *((token, weight) for piece, weight in pieces_of for token in _ids(tokenizer, piece)),
    ]
    return [*(tokens[: length - len(last)] if length else tokens), *((one, 1.0) for one in last)]


def words_of(text: str, layout: TextLayout) -> list[Said]:
    """Returns T5's words of a prompt that the network embeds, with their weights."""
    return said(_shipped(T5), text, DEFAULT_LAYOUT, layout.words)


def with_slots(tokenizer: Any, texts: Sequence[str], pictures: Sequence[Shown]) -> list[Said]:
    """Returns the tokens of the texts before, between and after pictures, and slots for the rows of
    these; all weights are 1.
    """
    first, *others = texts
    tokens: list[Said] = [(token, 1.0) for token in _ids(tokenizer, first)]
    for number, (picture, then) in enumerate(zip(pictures, others, strict=True)):
        tokens += [(Slot(number, row), 1.0) for row in range(picture.length)]
        tokens += [(token, 1.0) for token in _ids(tokenizer, then)]
    return tokens


def dropped(tokenizer: Any, tokens: Sequence[Said], layout: TextLayout) -> int:
    """Counts the tokens at the start of a text that the model does not read.

    Finds turns of the chat by their words, because a prompt may bring its own template. Like
    ComfyUI, searches the user's turn in the first two, and leaves it if it has no words.
    """
    if not layout.dropped:
        return 0
    ids = [token for token, _ in tokens]
    system, user = (_ids(tokenizer, TURN.format(whose)) for whose in ("system", "user\n"))
    turns = [place for place, token in enumerate(ids) if token == user[0]][:2]
    if layout.dropped == "system":
        return turns[1] if len(turns) == 2 and ids[: len(system)] == system else 0
    after = turns[-1] + len(user)
    return after if ids[turns[-1] : after] == user and after < len(ids) else turns[-1]


def _ids(tokenizer: Any, text: str) -> list[int]:
    """Returns the tokens of a text without start and end tokens."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


@lru_cache(maxsize=1)
def _shipped(kind: EncoderKind) -> Any:
    """Loads and caches a tokenizer of the package."""
    with quiet(logging):
        return getattr(transformers, kind.tokenizer).from_pretrained(TOKENIZERS / SHIPPED[kind])


@lru_cache(maxsize=16)
def load_tokenizer(encoder: TextEncoderRecipe) -> Any:
    """Loads and caches the tokenizer of a text encoder. Raises InputError for files of another
    kind.
    """
    part, kind = encoder.tokenizer, kind_of(encoder.encoder)
    place = f"its tensor {part.prefix} " if part.prefix else ""
    with quiet(logging):
        try:
            if part.prefix and kind.vocabulary:
                loaded = tekken_tokenizer(read_bytes(part.files[0], part.prefix))
            elif (model := _sentence_pieces(part)) is not None:
                loaded = sentence_piece_tokenizer(model)
            else:
                loaded = getattr(transformers, kind.tokenizer).from_pretrained(
                    part.folder, local_files_only=True, **json.loads(part.configuration or "{}")
                )
        except Exception as error:  # the tokenizers library raises bare Exception
            raise InputError(
                f"{part.folder}: {place}cannot be loaded as {kind.tokenizer}: {first_line(error)}"
            ) from error
    check = check_unchanged if part.prefix else check_content
    check(*part.files)
    return loaded


def _sentence_pieces(part: Component) -> bytes | None:
    """Returns a tokenizer's sentencepiece model if it has no other vocabulary, else None."""
    if part.prefix:  # stored in a checkpoint's tensor
        return read_bytes(part.files[0], part.prefix)
    vocabularies = {Path(file.path).name for file in part.files} & set(VOCABULARIES)
    if vocabularies != {SENTENCE_PIECES}:
        return None
    return (Path(part.folder) / SENTENCE_PIECES).read_bytes()
