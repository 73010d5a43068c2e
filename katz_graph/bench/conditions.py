"""Sets the conditions under which a bench measures: silences libraries, and keeps CPUs busy."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the libraries' progress bars, messages and warnings."""
    from katz_graph.models.loading.quiet import quiet as quiet_libraries
    from katz_graph.models.loading.store import LIBRARIES

    with quiet_libraries(*LIBRARIES), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def library_products() -> Iterator[None]:
    """Disables oneDNN products, so that layers compute as torch does on any CPU. Needed for bitwise
    comparisons.
    """
    from katz_graph.kernels import products

    with patch.object(products, "BY_ONEDNN", False):
        yield


@contextmanager
def computing(number: int) -> Iterator[None]:
    """Keeps `number` CPUs busy with processes that never wait."""
    with ExitStack() as opened:
        for _ in range(number):
            process = opened.enter_context(
                subprocess.Popen([sys.executable, "-c", "while True: pass"])
            )
            opened.callback(process.kill)
        yield
