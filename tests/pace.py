"""Scales bounds on processor time, so that they hold on slow machines and while other test
processes run.
"""

from __future__ import annotations

import time

STEPS = 2_000_000
QUICK = 0.1  # seconds that a fast machine takes for STEPS


def pace() -> float:
    """Returns this machine's current time for a fixed amount of work, as a multiple of a fast
    machine's.
    """
    began = time.thread_time()
    sum(number * number for number in range(STEPS))
    return (time.thread_time() - began) / QUICK
