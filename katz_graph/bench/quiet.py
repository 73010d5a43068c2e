"""Keeps the libraries' progress bars, notes and warnings out of a bench's table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from katz_graph.models.loading.quiet import quiet as quiet_libraries
from katz_graph.models.loading.store import LIBRARIES


@contextmanager
def quiet() -> Iterator[None]:
    """Silences them until the end of the block."""
    with quiet_libraries(*LIBRARIES), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
