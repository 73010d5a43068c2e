"""Defines the series-parallel tree of one evaluation, which programs carry to the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Tree:
    """Holds a leaf (one operation), or children in series (S), in parallel (P), or in neither order
    (prime), such as a ControlNet's blocks feeding the blocks of a network.
    """

    kind: Literal["leaf", "S", "P", "prime"]
    leaf: str = ""
    children: tuple[Tree, ...] = ()
    edges: tuple[
        tuple[int, int], ...
    ] = ()  # of a prime: (child, reader) after transitive reduction

    def __str__(self) -> str:
        return (
            self.leaf
            if self.kind == "leaf"
            else f"{self.kind}({', '.join(map(str, self.children))})"
        )

    def leaves(self) -> Iterator[str]:
        if self.kind == "leaf":
            yield self.leaf
        for child in self.children:
            yield from child.leaves()

    def fold(self, seconds: Callable[[str], float]) -> float:
        """Returns the time with unlimited devices and free communication: the sum over S, the
        maximum over P, the longest path through a prime.
        """
        if self.kind == "leaf":
            return seconds(self.leaf)
        parts = [child.fold(seconds) for child in self.children]
        if self.kind != "prime":
            return max(parts) if self.kind == "P" else sum(parts)
        ends: list[float] = []  # of the children, in topological order
        for number, part in enumerate(parts):
            before = [ends[first] for first, second in self.edges if second == number]
            ends.append(max(before, default=0.0) + part)
        return max(ends, default=0.0)  # none in an evaluation without a prompt
