"""Defines the value that blocks the readers of an output. Must not know who runs nodes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExecutionBlocker:
    """Stops the nodes that read the output it is given for. With a message that is an error of
    those nodes, without one it is silent.
    """

    message: str | None
