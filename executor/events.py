"""What a graph run tells of itself: an event when a node starts, is done, was taken from the cache, or failed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from katz_graph.errors import KatzError

EventKind = Literal["start", "done", "cached", "failed"]


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """`origin` is the node of the file that a node was made by (itself for a node of the file); `why` says why it ran or was cached."""

    kind: EventKind
    node: str
    type: str
    title: str
    origin: str
    seconds: float = 0.0
    why: str = ""
    error: KatzError | None = None
    began: float = 0.0  # time.perf_counter() when the node's own work began; it took `seconds`


OnEvent = Callable[[NodeEvent], None]
