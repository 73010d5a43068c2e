"""Defines the outcome of a check: a graph, and its problems, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph
from katz_graph.core.messages import node_name, one_line, shorten
from katz_graph.node.literals import LiteralFault

ProblemKind = (
    Literal[
        "unknown_type",  # no node type has this name
        "missing_input",
        "unknown_input",  # ignored
        "bad_link",  # a list that is not a link
        "dead_link",  # to a node or an output that does not exist
        "link_type",  # to an output of another type
        "cycle",
        "refused",  # by a node's own check
        "check_failed",  # a node's own check raised an error
        "region",  # nodes that do not form a loop over steps
        "over_limit",  # beyond the limits of this server
        "no_output",
    ]
    | LiteralFault
)


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault of a graph. `node` is empty if the fault concerns the whole graph, `input` if it
    concerns a whole node.

    `cycle` lists the nodes of a cycle in the direction of the data.
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
        where = f", {shorten(self.input)}" if self.input else ""
        return one_line(f"{node_name(self.node, self.type, self.title)}{where}: {self.message}")


@dataclass(frozen=True, slots=True)
class Checked:
    """A graph whose literals have the types of their inputs (`"5"` is 5, a list stays a list), and
    its problems.

    `targets` are the outputs that can run; errors block the outputs in `refused`.
    """

    graph: Graph
    problems: tuple[Problem, ...]
    targets: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "error")

    @property
    def warnings(self) -> tuple[Problem, ...]:
        return tuple(problem for problem in self.problems if problem.severity == "warning")

    def or_raise(self) -> Graph:
        """Returns the graph. Raises InputError with a line per error if there are any."""
        if self.errors:
            raise InputError("\n".join(map(str, self.errors)))
        return self.graph
