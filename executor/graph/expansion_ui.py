"""Keeps what nodes inside an expansion have for editors with the result of the node that expanded,
so that it can be given again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Holds what a node of an expansion has for editors. `part` is the last part of its id;
    `origin` the node of the file that it is shown as, where that is not the one that it was made
    for; `inner` are those of its own expansion.
    """

    part: str
    type: str
    ui: Mapping[str, Sequence[Any]] | None
    origin: str = ""
    inner: tuple[Shown, ...] = ()


def last_part(identifier: str) -> str:
    """Returns the last part of the id of a node of an expansion, without its number."""
    return identifier.rsplit(".", 1)[-1].partition("#")[0]


def with_inner(
    shown: Sequence[Shown], made_for: str, there: Container[str]
) -> Iterator[tuple[Shown, str, str]]:
    """Yields each that has something for editors, with the node of the file that it was made for
    and that it is shown as; `there` are ids of the file.
    """
    pending = [(one, made_for) for one in reversed(shown)]
    while pending:
        one, made_for = pending.pop()
        origin = one.origin if one.origin in there else made_for
        if one.ui is not None:
            yield one, made_for, origin
        pending += [(inner, origin) for inner in reversed(one.inner)]
