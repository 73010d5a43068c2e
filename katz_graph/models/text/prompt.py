"""Parses prompt weights: `(text)` has weight 1.1, `(text:1.3)` sets the weight, nesting multiplies,
`\\(` is plain text. Also splits tokens into chunks.

Never imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

Learned = tuple[str, int]  # a textual inversion's name, and the number of its vector
Token = tuple[int | Learned, float]  # id and weight


class Slot(NamedTuple):
    """Place of a row of a picture in a text."""

    picture: int
    row: int


Said = tuple[int | Slot, float]  # of a long text: id and weight

GROUP_WEIGHT = 1.1
WORD = 8  # tokens; shorter runs are not split at the end of a chunk
ESCAPES = {"\\(": "\ue000", "\\)": "\ue001"}


def weighted_segments(text: str) -> list[tuple[str, float]]:
    """Splits the prompt into runs of equal weight, in order. `(a:1.3)` has weight 1.3 even inside
    another group.

    An unmatched `(` turns the rest of its group into plain text. But if the rest ends in the `)` of
    an inner group, that `)` closes the unmatched `(`. After a surplus `)`, the next `(` is text.
    """
    for escape, stand_in in ESCAPES.items():
        text = text.replace(escape, stand_in)
    closing = _pairs(text)
    segments: list[tuple[str, float]] = []
    # One entry per open group. An end is (end of the group's text, end of the group); `surplus`
    # counts its unmatched `)`.
    weights, ends, surplus = [1.0], [(len(text), len(text))], [0]
    start = position = 0

    def emit(end: int) -> None:
        if end > start:
            segments.append((_unescape(text[start:end]), weights[-1]))

    while position < len(text):
        content_end, group_end = ends[-1]
        if position == content_end:
            emit(position)
            weights.pop()
            ends.pop()
            surplus.pop()
            start = position = group_end + 1
        elif text[position] == "(" and not surplus[-1]:
            emit(position)
            end = min(closing.get(position, content_end), content_end - 1)
            if text[end] == ")":
                weight, inner_end = _group(text, position, end, weights[-1])
                weights.append(weight)
                ends.append((inner_end, end))
                surplus.append(0)
                start = position = position + 1
            else:
                start, position = position, content_end
        else:
            surplus[-1] += {")": 1, "(": -1}.get(text[position], 0)
            position += 1
    emit(len(text))
    return segments


def unescaped(text: str) -> str:
    """Replaces the escaped parentheses in a text without weights."""
    for escape in ESCAPES:
        text = text.replace(escape, escape[1])
    return text


def chunks(segments: Sequence[Sequence[Token]], size: int) -> list[list[Token]]:
    """Splits tokens into rows of at most `size`, at least one row. A segment of fewer than 8 tokens
    starts a new row instead of being split.
    """
    rows: list[list[Token]] = [[]]
    for segment in segments:
        if len(segment) < WORD and len(rows[-1]) + len(segment) > size:
            rows.append([])
        for token in segment:
            if len(rows[-1]) == size:
                rows.append([])
            rows[-1].append(token)
    return rows


def _pairs(text: str) -> dict[int, int]:
    open_positions: list[int] = []
    pairs = {}
    for position, letter in enumerate(text):
        if letter == "(":
            open_positions.append(position)
        elif letter == ")" and open_positions:
            pairs[open_positions.pop()] = position
    return pairs


def _group(text: str, start: int, end: int, outer: float) -> tuple[float, int]:
    """Returns the weight of the group between two parentheses, and the end of its text."""
    colon = text.rfind(":", start + 2, end)
    if colon > 0:
        try:
            weight = float(text[colon + 1 : end])
        except ValueError:
            weight = math.nan
        if math.isfinite(weight):
            return weight, colon
    return outer * GROUP_WEIGHT, end


def _unescape(text: str) -> str:
    for escape, stand_in in ESCAPES.items():
        text = text.replace(stand_in, escape[1])
    return text
