"""Defines the limit of the rows that requests share in one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from katz_graph.core.errors import InputError


@dataclass(frozen=True, slots=True)
class SharedRows:
    """Limits the rows of a call that requests share; a row is one picture of one branch of
    guidance. 0: requests share no calls. `fixed`: each call of a model has exactly this many rows,
    so the bytes of a picture do not depend on other requests.
    """

    most: int = 0
    fixed: bool = False

    @classmethod
    def parse(cls, text: str, limit: int) -> Self:
        """Parses N or N:fixed. Raises InputError for another text, for numbers outside 0 to
        `limit`, and for 0:fixed.
        """
        number, colon, word = text.strip().partition(":")
        if not number.isascii() or not number.isdigit() or (colon and word != "fixed"):
            raise InputError(f"--shared-rows {text}: expected a number of rows, N or N:fixed")
        most = int(number)
        if most > limit:
            raise InputError(f"--shared-rows {text}: at most {limit} rows, the limit of a batch")
        if colon and not most:
            raise InputError(f"--shared-rows {text}: fixed needs at least 1 row")
        return cls(most, bool(colon))

    def __str__(self) -> str:
        return f"{self.most}:fixed" if self.fixed else str(self.most)


ALONE = SharedRows()
"""Requests share no calls."""
