"""Selects alternatives in a prompt and removes its comments, as front ends do when they send it.

`{a|b}` becomes one of its parts; groups inside the selected part are resolved in turn. A backslash
escapes a bracket or bar. Comments are `/* ... */`, and `//` to the end of the line.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

COMMENT = re.compile(r"/\*[\s\S]*?\*/|//[^\n\r\u2028\u2029]*")
ESCAPED = re.compile(r"\\([{}|])")
BRACKET = re.compile(r"[{}]")

Pick = Callable[[int], int]
"""Returns a number below the given one, the index of the alternative to send."""


@dataclass(slots=True)
class _Group:
    """A group of alternatives in a text: the positions of its bars and of its closing bracket."""

    end: int
    bars: list[int] = field(default_factory=list)


def sent_text(text: str, pick: Pick) -> str:
    """Converts a typed text to the text to send."""
    text = COMMENT.sub("", text)
    groups = _groups(text)
    parts: list[str] = []
    pending = [(0, len(text))]
    while pending:
        at, end = pending.pop()
        while at < end:
            group = groups.get(at)
            if group is None:
                width = 2 if text[at] == "\\" else 1
                parts.append(text[at : min(at + width, end)])
                at += width
                continue
            pending.append((group.end + 1, end))
            edges = [at, *group.bars, group.end]
            chosen = pick(len(edges) - 1)
            at, end = edges[chosen] + 1, edges[chosen + 1]
    return ESCAPED.sub(r"\1", "".join(parts))


def typed_text(text: str) -> str | None:
    """Returns the text to type so that `text` is sent; None if no input produces it."""
    typed = BRACKET.sub(r"\\\g<0>", text)
    return typed if sent_text(typed, lambda _: 0) == text else None


def _groups(text: str) -> dict[int, _Group]:
    """Finds every group by the position of its opening bracket. An unclosed group ends with the
    text.
    """
    groups: dict[int, _Group] = {}
    opened: list[_Group] = []
    at = 0
    while at < len(text):
        match text[at]:
            case "\\":
                at += 1
            case "{":
                groups[at] = _Group(len(text))
                opened.append(groups[at])
            case "}" if opened:
                opened.pop().end = at
            case "|" if opened:
                opened[-1].bars.append(at)
        at += 1
    return groups
