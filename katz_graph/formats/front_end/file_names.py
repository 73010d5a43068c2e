"""Expands the patterns `%date:yyyy-MM-dd%` and `%NODE.WIDGET%` in names of saved files, as front
ends do when they send a document. The node itself expands other patterns, such as `%width%`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any

WIDGET = "filename_prefix"
SAVERS = frozenset(
    (
        *("SaveImage", "SaveImageAdvanced", "SaveSVGNode", "SaveVideo", "SaveAnimatedWEBP"),
        *("SaveAnimatedPNG", "SaveWEBM", "SaveAudio", "SaveAudioMP3", "SaveAudioOpus"),
        *("SaveAudioAdvanced", "SaveGLB", "Save3DAdvanced", "SaveGaussianSplat", "SavePointCloud"),
        *("CLIPSave", "VAESave", "ModelSave", "LoraSave", "SaveLatent"),
    )
)
"""Node types whose file names are expanded."""
PATTERN = re.compile(r"%([^%]+)%")
DATE = re.compile(r"dd?|MM?|hh?|mm?|ss?|yyy?y?")
UNSAFE = re.compile(r'[/?<>\\:*|"\x00-\x1f\x7f]')
PLAIN_BELOW = 10**21  # JavaScript writes larger numbers with an exponent
PLAIN_FROM = Decimal("1e-6")

Lookup = Callable[[str, str], str | None]
"""Returns the value of a widget as text, by node name and widget name; None if no such widget
exists.
"""


def filled_in(name: str, value_of: Lookup, now: datetime) -> str:
    """Expands the patterns of a file name. A pattern without a matching date or widget is left
    unchanged.
    """

    def replaced(match: re.Match[str]) -> str:
        first, *rest = match[1].split(".")
        if len(rest) == 1:
            value = value_of(first, rest[0])
            return match[0] if value is None else UNSAFE.sub("_", value)
        return dated(first[5:], now) if first.startswith("date:") else match[0]

    return PATTERN.sub(replaced, name)


def dated(form: str, now: datetime) -> str:
    """Formats a time; `form` may contain d, M, h, m and s, each once or twice, yy and yyyy."""
    numbers = {"d": now.day, "M": now.month, "h": now.hour, "m": now.minute, "s": now.second}

    def written(match: re.Match[str]) -> str:
        token = match[0]
        if token[0] in numbers:
            return str(numbers[token[0]]).zfill(len(token))
        return {2: str(now.year)[2:], 4: str(now.year)}.get(len(token), token)

    return DATE.sub(written, form)


def as_text(value: Any) -> str:
    """Formats a widget's value as JavaScript does."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(map(as_text, value))
    if isinstance(value, float):
        return _number(value)
    return "[object Object]" if isinstance(value, dict) else str(value)


def _number(value: float) -> str:
    if value.is_integer() and abs(value) < PLAIN_BELOW:
        return str(int(value))
    exact = Decimal(repr(value))
    if PLAIN_FROM <= abs(exact) < PLAIN_BELOW:
        return f"{exact:f}"
    return re.sub(r"e([+-])0+", r"e\1", repr(value))
