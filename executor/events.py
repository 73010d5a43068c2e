"""What a graph run tells of itself: an event when a node starts, is done, was taken from the cache, was blocked, or failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from katz_graph.errors import KatzError

EventKind = Literal["start", "done", "cached", "blocked", "failed"]


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """`origin` is the node of the file that a node was made by, or is shown as (itself for a node of the file).

    `why` says why it ran, was cached or did not run. `ui` is what it has for editors, when it is done or cached.
    """

    kind: EventKind
    node: str
    type: str
    title: str
    origin: str
    seconds: float = 0.0
    why: str = ""
    error: KatzError | None = None
    began: float = 0.0  # time.perf_counter() when the node's own work began; it took `seconds`
    ui: Mapping[str, Sequence[Any]] | None = None


OnEvent = Callable[[NodeEvent], None]
