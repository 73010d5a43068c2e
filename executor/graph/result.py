"""Holds the result of a graph run, and what of it failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from katz_graph.core.errors import DiskFull, InputError, KatzError, RunError
from katz_graph.core.messages import listed
from katz_graph.executor.graph.node_state import Outputs


@dataclass(frozen=True, slots=True)
class GraphResult:
    """Holds the outputs of the targets that were reached, what nodes show in editors, and an error
    for each node that failed.

    An output of several values is a `Listed`. `blocked` are reached targets that did not run
    because a node upstream said so.
    """

    outputs: Mapping[str, Outputs]
    failures: Mapping[str, KatzError] = field(default_factory=dict)
    refused: tuple[str, ...] = ()  # targets that were not reached
    ui: Mapping[str, Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    blocked: tuple[str, ...] = ()

    def raise_failures(self) -> None:
        """Raises one error for all that failed: DiskFull if that is why one did, InputError if no
        target was reached and only wrong input stood in the way, else RunError.
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
