"""Stores the UI output of nodes inside an expansion with the expanded node's result, so that the
cached result can report it again.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """Holds the UI output of a node in an expansion. `part`: the last part of the node's id.
    `origin`: the file's node that shows the output, if that differs from the creating node.
    `inner`: nodes that the node expanded to.
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
    """Yields each node with UI output, the file's node that created it, and the file's node that
    shows the output. `there`: ids in the file.
    """
    pending = [(one, made_for) for one in reversed(shown)]
    while pending:
        one, made_for = pending.pop()
        origin = one.origin if one.origin in there else made_for
        if one.ui is not None:
            yield one, made_for, origin
        pending += [(inner, origin) for inner in reversed(one.inner)]
