"""Starts programs that compute beside what is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def computing(number: int) -> Iterator[None]:
    """Keeps so many processors busy, by processes that never wait."""
    with ExitStack() as opened:
        for _ in range(number):
            process = opened.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            opened.callback(process.kill)
        yield
