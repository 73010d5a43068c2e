"""Keeps the libraries' progress bars and notes out of a bench's table."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from diffusers.utils import logging as diffusers_logging
from transformers.utils import logging as transformers_logging


@contextmanager
def quiet() -> Iterator[None]:
    """Until the end of the block."""
    levels = diffusers_logging.get_verbosity(), transformers_logging.get_verbosity()
    for library in (diffusers_logging, transformers_logging):
        library.set_verbosity(logging.CRITICAL)
        library.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        diffusers_logging.set_verbosity(levels[0])
        transformers_logging.set_verbosity(levels[1])
        for library in (diffusers_logging, transformers_logging):
            library.enable_progress_bar()
