"""Configures how often Python collects reference cycles. Exempts objects of libraries, because
searching these objects takes longer than the imports.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = gc.get_threshold()
COLLECTION_THRESHOLD_OBJECTS = 100_000  # allocations between collections


def expect_imports() -> None:
    """Collects less often until `imports_are_done`, and never at process exit."""
    gc.set_threshold(COLLECTION_THRESHOLD_OBJECTS)
    atexit.register(gc.freeze)


def imports_are_done() -> None:
    """Restores the usual thresholds and freezes existing objects, because collecting them blocks
    all threads.
    """
    gc.freeze()
    gc.set_threshold(*USUAL)


def imports_are_expected() -> bool:
    """Returns whether imports are in progress, between `expect_imports` and `imports_are_done`."""
    return gc.get_threshold()[0] == COLLECTION_THRESHOLD_OBJECTS


@contextmanager
def uncollected() -> Iterator[None]:
    """Disables collection in all threads inside the `with` statement."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
