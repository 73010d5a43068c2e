"""Parses JSON text and rejects duplicate keys, infinite numbers, unpaired surrogates and excessive
nesting.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.messages import shorten, show

DEPTH = 100
# per text: a parsed value takes up to a hundred times the memory of its text (`[],`), and the
# interpreter lock is held while thousands of values are created
MAX_VALUES = 500_000
SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class TooLarge(InputError):
    """A text exceeds the reader's limit."""


def parse_json(text: str, max_values: int = MAX_VALUES) -> Any:
    """Parses a JSON text. InputError with line and column. Raises TooLarge, before parsing, for
    more than `max_values` numbers, strings, arrays and objects. Accepts NaN: callers reject it by
    input name.
    """
    if not text.strip():
        raise InputError("is empty")
    if _holds_more(text, max_values):
        raise TooLarge(f"has more than {max_values:,} values")
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise InputError(
            f"broken JSON at line {error.lineno}, column {error.colno}: {_explained(error)}"
        ) from None
    except ValueError:  # Python's limit on the digits of an integer
        raise InputError("a whole number has thousands of digits") from None
    except RecursionError:
        raise InputError(_too_deep()) from None
    if _deeper_than(data, DEPTH):
        raise InputError(_too_deep())
    if SURROGATE.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise InputError(
                r"a text holds half of a surrogate pair (\ud800 to \udfff), which is no character"
            ) from None
    return data


def _holds_more(text: str, max_values: int) -> bool:
    """Returns whether the commas and opening brackets outside of strings, which bound the number of
    values, exceed the limit.
    """
    if _separators(text) <= max_values:
        return False
    plain = text.replace("\\\\", "").replace('\\"', "")
    if plain.count('"') > 4 * max_values:  # two quotes per value, and two per key
        return True
    return sum(map(_separators, plain.split('"')[::2])) > max_values


def _separators(text: str) -> int:
    return text.count(",") + text.count("[") + text.count("{")


def _too_deep() -> str:
    return f"nested more than {DEPTH} levels deep, the limit"


def _explained(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos : error.pos + 20].split("\n")[0]
    found = (
        f", found {show(shorten(rest, 16))}"
        if rest
        else ", but the file ends here"
        if error.pos >= len(error.doc.rstrip())
        else ""
    )
    return f"{error.msg[0].lower()}{error.msg[1:]}{found}"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InputError(f"the key {show(twice)} occurs twice in one object")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InputError(f"the number {shorten(text, 30)} is too large")
    return number


def _deeper_than(data: Any, limit: int) -> bool:
    layer = [data]
    for _ in range(limit):
        layer = [
            child
            for value in layer
            if isinstance(value, (dict, list))
            for child in (value.values() if isinstance(value, dict) else value)
        ]
        if not layer:
            return False
    return True
