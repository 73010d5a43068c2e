"""Holds a request's times on a device, as they are told and printed. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from katz_graph.core.events import Span


@dataclass(slots=True)
class Timing:
    """Holds a request's times in seconds. `load`: from files, nothing when all was there;
    `prepare`: what precedes the loop.

    Patching of weights is part of whatever needed it.
    """

    load: float = 0.0
    prepare: float = 0.0
    denoise: float = 0.0
    spans: list[Span] = field(default_factory=list)
    switches: dict[str, float] = field(default_factory=dict)
    """Of the instructions that made a weight set resident, by its name, where it was not yet."""
    reads: dict[str, float] = field(default_factory=dict)
    """Of LoRA files that were read for it, by what that is kept under; not of those that were in
    memory.
    """
    arrivals: dict[str, int] = field(default_factory=dict)
    """Of late LoRAs, by path: the evaluation from which on each was in the weights."""
    calls: dict[str, int] = field(default_factory=dict)
    """Of stages that were recorded, replayed, beside others, and eager."""
    samples: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)
    """Of calls, when asked for, by cost key and members: evaluation (-1 before the loop) and
    seconds.
    """
