"""The value with which a node of a pack stops what reads it. Knows nothing of who runs the nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutionBlocker:
    """Given for an output: nodes that read it do not run. With a message that is an error of those
    nodes, without one it is silent.
    """

    message: str | None
