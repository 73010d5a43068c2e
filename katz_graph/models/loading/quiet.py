"""Suppresses the output of libraries that load models."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from katz_graph.host.own_changes import own_changes
from katz_graph.host.process_aspects import FILTERS


@contextmanager
def quiet(*libraries: ModuleType) -> Iterator[None]:
    """Silences FutureWarnings, and the progress bars and logs of `libraries` (logging modules).
    This program reports relevant problems as errors.
    """
    before = [
        (library, library.get_verbosity(), library.is_progress_bar_enabled())
        for library in libraries
    ]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    try:
        with own_changes.changing(FILTERS), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for library, level, bars in before:
            library.set_verbosity(level)
            if bars:
                library.enable_progress_bar()
