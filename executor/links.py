"""How fast a link is, from timed transfers. Knows nothing of what carries them."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from katz_graph.planner.program import Link

Probe = Callable[[int], float]
"""Sends so many bytes one way and gives the seconds until the other end had all of them."""

FEW = 64  # bytes of a message that is all latency
SMALLEST, LARGEST = 1 << 16, 1 << 26
LONG = 0.05  # seconds of a transfer that is long enough to be timed
REPEATS, FEWEST = 7, 3
WARM_UP = 2  # of the repeats
BUDGET = 3.0  # seconds of transfers after which the fewest repeats are enough


def measure_link(probe: Probe) -> Link:
    """Latency: the median of small messages. Bandwidth: how much longer a long transfer takes than one of a quarter of its size.

    Shapers let a bucket of bytes through at full speed before they hold to their rate. Sizes grow until a transfer takes 50 ms, which
    empties the bucket, and the long transfers follow each other without a pause in which it would fill. A bucket that holds several
    of the long transfers counts as the link's own speed.
    """
    latency = statistics.median(probe(FEW) for _ in range(REPEATS))
    size = SMALLEST
    while size < LARGEST and probe(size) < LONG:
        size *= 2
    quarters: list[float] = []
    wholes: list[float] = []
    while len(wholes) < FEWEST or (len(wholes) < REPEATS and sum(wholes) + sum(quarters) < BUDGET):
        wholes.append(probe(size))
        quarters.append(probe(size // 4))
    skipped = min(WARM_UP, len(wholes) // 2)
    whole, quarter = statistics.median(wholes[skipped:]), statistics.median(quarters[skipped:])
    longer = whole - quarter
    bytes_per_second = (size - size // 4) / longer if longer > 0 else size / whole
    return Link(bytes_per_second, latency)
