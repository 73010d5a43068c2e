"""Formats values and names for messages as one shortened, printable line, with the nearest known
name.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from typing import Any

SHOWN = 60  # maximum length of a value in a message
COMPARED = 80  # characters of a name compared with known names


def one_line(text: str) -> str:
    """Replaces line breaks, escape sequences and other control characters that a terminal would
    execute.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable()
        else " "
        if char in "\n\r\t"
        else char.encode("unicode_escape").decode()
        for char in text
    )


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its class name if the message is empty."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def shorten(text: str, limit: int = SHOWN) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def show(value: Any) -> str:
    """Formats a value as in the workflow file, shortened."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return one_line(
            shorten(
                json.dumps(
                    value if not isinstance(value, str) else value[: SHOWN + 1], ensure_ascii=False
                )
            )
        )
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    return f"a {type(value).__name__}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name most similar to `name`, ignoring case; None if none is similar."""
    by_folded = {candidate.casefold()[:COMPARED]: candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold()[:COMPARED], by_folded, n=1, cutoff=0.6)
    return by_folded[close[0]] if close else None


def suggest(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean "..."?`, or "" if no known name is similar."""
    close = nearest(name, known)
    return f"; did you mean {show(close)}?" if close is not None else ""


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Joins up to `limit` names for a sentence and counts the rest."""
    known = list(names)
    more = f" and {len(known) - limit:,} more" if len(known) > limit else ""
    return ", ".join(one_line(shorten(name)) for name in known[:limit]) + more


def node_name(identifier: str, kind: str, title: str = "") -> str:
    """Formats a node for messages: id, type, and the title if the user set one."""
    called = f' "{shorten(title, 40)}"' if title and title != kind else ""
    return one_line(f"node {shorten(identifier)} ({shorten(kind)}{called})")
