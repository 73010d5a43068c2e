"""Regular expressions that people write, with an end: one that takes too long is stopped, which Python's own cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import regex

from katz_graph.errors import InputError
from katz_graph.wording import show

LONGEST = 10.0  # seconds


class Search:
    """A regular expression in Python's syntax. InputError when it is none, and when a search takes longer than LONGEST."""

    def __init__(self, pattern: str, ignore_case: bool = False, multiline: bool = False, dotall: bool = False) -> None:
        flags = (regex.IGNORECASE * ignore_case) | (regex.MULTILINE * multiline) | (regex.DOTALL * dotall)
        self._pattern = pattern
        try:
            self._compiled = regex.compile(pattern, flags)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise InputError(f"regex_pattern {show(pattern)} is not a regular expression: {error}") from None
        self.groups: int = self._compiled.groups

    def found(self, text: str) -> bool:
        return self._ended(lambda: self._compiled.search(text, timeout=LONGEST)) is not None

    def all(self, text: str, group: int = 0) -> list[str]:
        """One group (0 is the whole) of each match; a group that took no part is empty."""
        return list(self._ended(lambda: [match[group] or "" for match in self._compiled.finditer(text, timeout=LONGEST)]))

    def replaced(self, text: str, replacement: str, count: int = 0) -> str:
        try:
            return str(self._ended(lambda: self._compiled.sub(replacement, text, count=count, timeout=LONGEST)))
        except (regex.error, IndexError) as error:
            raise InputError(f"replace {show(replacement)} does not fit the expression {show(self._pattern)}: {error}") from None

    def _ended(self, search: Callable[[], Any]) -> Any:
        try:
            return search()
        except TimeoutError:
            raise InputError(f"regex_pattern {show(self._pattern)} took longer than {LONGEST:g} s on this text; make it simpler") from None
