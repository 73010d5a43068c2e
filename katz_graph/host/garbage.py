"""When Python looks for objects that only hold each other. Those of libraries stay: searching them
takes longer than importing them.
"""

import atexit
import gc

USUAL = gc.get_threshold()
RARELY = 100_000  # new objects, instead of some hundred


def expect_imports() -> None:
    """Look rarely until `imports_are_done`, and when this process ends not at all."""
    gc.set_threshold(RARELY)
    atexit.register(gc.freeze)


def imports_are_done() -> None:
    """Look as often as usual, but never through what is there now: that holds up all threads."""
    gc.freeze()
    gc.set_threshold(*USUAL)
