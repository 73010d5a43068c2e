"""Bounds on processor time that hold on slow machines, and while other test processes run."""

from __future__ import annotations

import time

STEPS = 2_000_000
QUICK = 0.1  # seconds that a quick machine takes for so many


def pace() -> float:
    """How many times as long as a quick machine this one takes now for the same work."""
    began = time.thread_time()
    sum(number * number for number in range(STEPS))
    return (time.thread_time() - began) / QUICK
