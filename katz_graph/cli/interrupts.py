"""Makes Ctrl-C end a command reliably.

Python raises KeyboardInterrupt in the current code of the main thread. In callbacks that discard
exceptions, such as the thousands of weak-reference callbacks of imports, the interrupt is lost.
Below a C++ callback, it aborts the process.
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

RAISE_AGAIN_AFTER_S = 0.01  # seconds until a lost interrupt is raised again
IMPORTS = "<frozen importlib._bootstrap>"


@contextmanager
def heeded() -> Iterator[None]:
    """Ensures that no Ctrl-C is lost inside the `with` statement. During the imports that a command
    needs before it does any work, Ctrl-C ends the process immediately. If SIGINT is ignored or has
    another handler, nothing changes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    original_hook = sys.unraisablehook

    def lost(error: sys.UnraisableHookArgs) -> None:
        if error.exc_type is KeyboardInterrupt:
            # raise later: this callback would lose it again
            timer = threading.Timer(RAISE_AGAIN_AFTER_S, _thread.interrupt_main)
            timer.daemon = True
            timer.start()
        else:
            original_hook(error)

    sys.unraisablehook = lost
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = original_hook


def _interrupted(_: int, frame: FrameType | None) -> None:
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    if frame is not None and imports_are_expected():
        os.write(2, b"error: cancelled\n")
        os._exit(Cancelled.exit_code)
    raise KeyboardInterrupt
