"""Sets how often Python searches for reference cycles. Objects of libraries are left out: searching
them takes longer than importing them.
"""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager

USUAL = gc.get_threshold()
RARELY = 100_000  # new objects, instead of some hundred


def expect_imports() -> None:
    """Collects rarely until `imports_are_done`, and not at all when this process ends."""
    gc.set_threshold(RARELY)
    atexit.register(gc.freeze)


def imports_are_done() -> None:
    """Collects as often as usual, but never present objects: that holds up all threads."""
    gc.freeze()
    gc.set_threshold(*USUAL)


def imports_are_expected() -> bool:
    """Returns whether `expect_imports` was called and `imports_are_done` was not."""
    return gc.get_threshold()[0] == RARELY


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps cycles from being collected, by any thread, inside of the `with` statement."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
