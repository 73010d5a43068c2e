"""Holds a request's times on a device, for reports and printing. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from katz_graph.core.events import Span


@dataclass(slots=True)
class Timing:
    """Holds a request's times in seconds. Time for patching weights counts toward the work that
    needed it.
    """

    load: float = 0.0  # reading models from files; 0 if all were in memory
    prepare: float = 0.0  # the calls before the loop
    denoise: float = 0.0
    spans: list[Span] = field(default_factory=list)
    switches: dict[str, float] = field(default_factory=dict)
    """Seconds to make each weight set resident, by its name; only sets that were not resident."""
    reads: dict[str, float] = field(default_factory=dict)
    """Seconds to read each LoRA file, by its cost key; only for files that were not in memory."""
    arrivals: dict[str, int] = field(default_factory=dict)
    """First evaluation with each deferred LoRA in the weights, by path."""
    calls: dict[str, int] = field(default_factory=dict)
    """Numbers of recorded, replayed, concurrent and eager stage calls."""
    samples: dict[tuple[str, int], list[tuple[int, float]]] = field(default_factory=dict)
    """Times of calls, if measured, by cost key and number of members: (evaluation, seconds);
    evaluation is -1 before the loop.
    """
