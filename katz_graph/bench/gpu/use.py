"""Counts how an engine's calls were made."""

from __future__ import annotations

from typing import Any

from katz_graph.executor.calls.computing import AS_DECLARED
from katz_graph.executor.engine import DeviceEngine
from katz_graph.executor.recorded.recorder import NOT_DECLARED, WARMING_UP

EXPECTED = {AS_DECLARED, WARMING_UP, NOT_DECLARED}
"""Expected reasons for eager calls."""


def use_of(engine: DeviceEngine) -> dict[str, Any]:
    """Returns the numbers of recorded, replayed and eager calls, and the unexpected reasons for
    eager calls.
    """
    use = engine.models.compute.use
    return {
        "captures": use.captures,
        "replays": use.replays,
        "eager": sum(use.eager.values()),
        "refused": sorted(use.eager.keys() - EXPECTED),
    }
