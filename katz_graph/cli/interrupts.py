"""Has Ctrl-C end a command wherever it comes. Python raises it in whatever the main thread does:
in a callback whose errors nobody gets it is lost (imports make thousands of them, for weak
references), and under a callback of C++ it aborts the process.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from katz_graph.core.errors import Cancelled
from katz_graph.host.garbage import imports_are_expected

AGAIN = 0.01  # seconds after which one that was lost is raised once more
IMPORTS = "<frozen importlib._bootstrap>"


@contextmanager
def heeded() -> Iterator[None]:
    """Inside of the `with` statement no Ctrl-C is lost. While modules are imported that a command
    needs before it does anything, it ends the process at once. Whoever ignores or handles it
    otherwise still does.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    told = sys.unraisablehook

    def lost(error: sys.UnraisableHookArgs) -> None:
        if error.exc_type is KeyboardInterrupt:
            # not from here, where it would be lost again
            timer = threading.Timer(AGAIN, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
        else:
            told(error)

    sys.unraisablehook = lost
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = told


def _interrupted(_: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    if frame is not None and imports_are_expected():
        os.write(2, b"error: cancelled\n")
        os._exit(Cancelled.exit_code)
    raise KeyboardInterrupt
