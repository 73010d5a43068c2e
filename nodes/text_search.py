"""Searches text with regular expressions under a time limit, which Python's `re` lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

import regex

from katz_graph.core.errors import InputError
from katz_graph.core.messages import show

SEARCH_TIMEOUT_S = 10.0  # seconds
MAX_TEXT_CHARACTERS = 4 * 2**20  # characters of a generated text
REFERENCE = regex.compile(r"\\[1-9g]")  # group reference in a replacement


class TimedSearch:
    """Searches with a regular expression in Python's syntax. Raises InputError if the expression is
    malformed, and if a search takes longer than SEARCH_TIMEOUT_S.
    """

    def __init__(
        self, pattern: str, ignore_case: bool = False, multiline: bool = False, dotall: bool = False
    ) -> None:
        flags = (
            (regex.IGNORECASE * ignore_case)
            | (regex.MULTILINE * multiline)
            | (regex.DOTALL * dotall)
        )
        self._pattern = pattern
        try:
            self._compiled = regex.compile(pattern, flags)
        except (regex.error, ValueError, OverflowError, RecursionError) as error:
            raise InputError(
                f"regex_pattern {show(pattern)} is not a regular expression: {error}"
            ) from None
        self.groups: int = self._compiled.groups

    def found(self, text: str) -> bool:
        return (
            self._ended(lambda: self._compiled.search(text, timeout=SEARCH_TIMEOUT_S)) is not None
        )

    def all(self, text: str, group: int = 0, count: int = 0) -> list[str]:
        """Returns one group (0 is the whole match) of each match, or of the first `count`; a group
        that did not match is empty.

        Raises InputError if the results, with one line end each, exceed MAX_TEXT_CHARACTERS.
        """
        return list(self._ended(lambda: self._all(text, group, count)))

    def replaced(self, text: str, replacement: str, count: int = 0) -> str:
        """Replaces each match in `text`, or the first `count`. Raises InputError if the
        replacements could make it longer than MAX_TEXT_CHARACTERS.
        """
        self._ended(lambda: self._check_replaced(text, replacement, count))
        try:
            return str(
                self._ended(
                    lambda: self._compiled.sub(
                        replacement, text, count=count, timeout=SEARCH_TIMEOUT_S
                    )
                )
            )
        except (regex.error, IndexError) as error:
            raise InputError(
                f"replace {show(replacement)} does not fit the expression "
                f"{show(self._pattern)}: {error}"
            ) from None

    def _all(self, text: str, group: int, count: int) -> list[str]:
        found, size = [], 0
        for match in self._matches(text, count):
            found.append(match[group] or "")
            size += len(found[-1]) + 1
            check_size("the matches of regex_pattern", size)
        return found

    def _check_replaced(self, text: str, replacement: str, count: int) -> None:
        size, references = len(text), len(REFERENCE.findall(replacement))
        for match in self._matches(text, count):
            start, end = match.span()
            longest = max(later - earlier for earlier, later in match.regs) if references else 0
            size += len(replacement) + references * longest - (end - start)
            check_size("the text after replacing regex_pattern", size)

    def _matches(self, text: str, count: int) -> Iterable[regex.Match[str]]:
        return islice(self._compiled.finditer(text, timeout=SEARCH_TIMEOUT_S), count or None)

    def _ended(self, search: Callable[[], Any]) -> Any:
        try:
            return search()
        except TimeoutError:
            raise InputError(
                f"regex_pattern {show(self._pattern)} took longer than {SEARCH_TIMEOUT_S:g} s on "
                "this text; make it simpler"
            ) from None


def check_size(what: str, size: int) -> None:
    """Raises InputError if `size` exceeds MAX_TEXT_CHARACTERS. Call it before creating the text."""
    if size > MAX_TEXT_CHARACTERS:
        raise InputError(
            f"{what} has more than {MAX_TEXT_CHARACTERS:,} characters, which is too long"
        )
