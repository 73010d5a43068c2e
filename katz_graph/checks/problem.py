"""Defines a problem of a graph, as data and as a line for people. Must not know how it is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from katz_graph.checks.literals import LiteralFault
from katz_graph.messages import node_name, one_line, shorten

ProblemKind = (
    Literal[
        "unknown_type",  # no node type has this name
        "missing_input",
        "unknown_input",  # takes no part
        "dead_link",  # to a node or an output that there is not
        "link_type",  # to an output of another type
        "cycle",
        "refused",  # a node's own check says why
        "check_failed",  # a node's own check came to an error
        "region",  # nodes that do not make a loop over steps
        "over_limit",  # more than this server runs
        "no_output",
    ]
    | LiteralFault
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a graph. `node` is empty for one of the whole graph, `input` for one of a whole
    node.

    `cycle` has the nodes of a cycle in the direction of the data.
    """

    kind: ProblemKind
    node: str
    type: str
    input: str
    message: str
    severity: Literal["error", "warning"] = "error"
    title: str = ""
    cycle: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.node:
            return one_line(self.message)
        return one_line(f"{node_name(self.node, self.type, self.title)}{f', {shorten(self.input)}' if self.input else ''}: {self.message}")
