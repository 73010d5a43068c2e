"""Reads sentencepiece models of T5 and mT5, in place of the package sentencepiece. Passes scored
pieces and the normalisation table to the tokenizers library, whose unigram model splits texts into
the same pieces.

Refuses models other than unigram; omits user-defined symbols.
"""

from __future__ import annotations

import struct
from typing import Any

import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

# fields by number, and their values: sentencepiece_model.proto (github.com/google/sentencepiece)
PIECES, TRAINING, NORMALISING = 1, 2, 3
TEXT, SCORE, TYPE = 1, 2, 3  # of a piece
KIND, BYTES = 3, 35  # of the training; BYTES: unknown letters are encoded as bytes
TABLE = 2  # of the normalisation
UNIGRAM, UNKNOWN = 1, 2  # a kind of model, a type of piece
PADDING, END = "<pad>", "</s>"  # pieces in T5's models
SPACE = "▁"
FIXED = {1: 8, 5: 4}  # bytes of values of a wire type


def sentence_piece_tokenizer(model: bytes) -> Any:
    """Builds a tokenizer that appends the end token, like T5's. Raises ValueError if the bytes are
    not a unigram sentencepiece model.
    """
    try:
        fields = _fields(model)
        trained, normalising = (
            _fields(fields.get(name, [b""])[-1]) for name in (TRAINING, NORMALISING)
        )
        pieces = [_fields(piece) for piece in fields[PIECES]]
        scored = [
            (piece[TEXT][0].decode(), struct.unpack("<f", piece.get(SCORE, [bytes(4)])[0])[0])
            for piece in pieces
        ]
        unknown = [piece.get(TYPE) for piece in pieces].index([UNKNOWN])
        end = [text for text, _ in scored].index(END)
    except (LookupError, ValueError, TypeError, AttributeError, struct.error):
        raise ValueError("not a sentencepiece model like T5's") from None
    if trained.get(KIND, [UNIGRAM])[-1] != UNIGRAM:
        raise ValueError("expected a unigram sentencepiece model, like T5's")
    made = Tokenizer(Unigram(scored, unknown, byte_fallback=trained.get(BYTES, [0])[-1] == 1))
    if table := normalising.get(TABLE, [b""])[-1]:
        made.normalizer = normalizers.Precompiled(table)
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
        ]
    )
    made.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, end)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        eos_token=END,
        pad_token=PADDING,
        unk_token=scored[unknown][0],
    )


def _fields(message: bytes) -> dict[int, list[Any]]:
    """Parses a protocol buffer. Returns its fields by number, each with all its values: integers or
    bytes. Raises ValueError or LookupError for other bytes.
    """
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = _number(message, place)
        value: int | bytes
        if key & 7 == 0:
            value, place = _number(message, place)
        else:
            length, place = _number(message, place) if key & 7 == 2 else (FIXED[key & 7], place)
            value, place = message[place : place + length], place + length
            if place > len(message):
                raise ValueError(key)
        found.setdefault(key >> 3, []).append(value)
    return found


def _number(message: bytes, place: int) -> tuple[int, int]:
    """Returns a varint and the position after it."""
    value = shift = 0
    while True:
        byte = message[place]
        value, place = value | (byte & 127) << shift, place + 1
        if byte < 128:
            return value, place
        shift += 7
