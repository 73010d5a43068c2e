"""Holds the result of a graph run, including its failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import DiskFull, InputError, KatzError, RunError
from katz_graph.core.messages import listed
from katz_graph.executor.graph.node_state import Outputs


@dataclass(frozen=True, slots=True)
class GraphResult:
    """Holds the outputs of the reached targets, the UI output of nodes, and an error for each
    failed node.

    An output with several values is a `Listed`. `blocked`: reached targets that a node upstream
    blocked.
    """

    outputs: Mapping[str, Outputs]
    failures: Mapping[str, KatzError] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # targets that were not reached
    ui: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()

    def raise_failures(self) -> None:
        """Raises one error for all failures: DiskFull if any is one; InputError if no target was
        reached and all failures are input errors; otherwise RunError. Does nothing if all targets
        were reached.
        """
        if not self.refused:
            return
        errors = list(self.failures.values())
        lines = "\n".join(map(str, errors))
        kind: type[KatzError] = RunError
        if any(isinstance(error, DiskFull) for error in errors):
            kind = DiskFull
        elif not self.outputs and all(isinstance(error, InputError) for error in errors):
            kind = InputError
        if self.outputs:
            lines += f"\nsome outputs were refused: node {listed(self.refused)}"
        raise kind(lines) from errors[0]
