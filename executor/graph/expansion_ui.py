"""Stores the UI output of nodes inside an expansion with the result of the expanded node, so that a
cached result can report it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Holds the UI output of a node in an expansion. `part`: the last part of its id. `origin`: the
    file's node that shows it, if that differs from the node that created it. `inner`: the nodes
    that it expanded to.
    """

    part: str
    type: str
    ui: Mapping[str, Sequence[Any]] | None
    origin: str = ""
    inner: tuple[Shown, ...] = ()


def last_part(identifier: str) -> str:
    """Returns the last part of an expansion node's id, without its number."""
    return identifier.rsplit(".", 1)[-1].partition("#")[0]


def with_inner(
    shown: Sequence[Shown], made_for: str, there: Container[str]
) -> Iterator[tuple[Shown, str, str]]:
    """Yields each node with UI output, the file's node that created it, and the one that shows it.
    `there`: ids of the file.
    """
    pending = [(one, made_for) for one in reversed(shown)]
    while pending:
        one, made_for = pending.pop()
        origin = one.origin if one.origin in there else made_for
        if one.ui is not None:
            yield one, made_for, origin
        pending += [(inner, origin) for inner in reversed(one.inner)]
