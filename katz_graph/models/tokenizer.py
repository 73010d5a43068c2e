"""CLIP's tokenizers. Whoever only counts tokens need not load the libraries of models, which takes seconds."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import transformers
from transformers.utils import logging

from katz_graph.errors import InputError
from katz_graph.models.loading import quiet
from katz_graph.recipe import Component
from katz_graph.wording import first_line


@lru_cache(maxsize=16)
def load_tokenizer(part: Component) -> Any:
    """A CLIPTokenizer; loaded once. InputError when the files are not one."""
    with quiet(logging):
        try:
            return transformers.CLIPTokenizer.from_pretrained(part.folder, local_files_only=True, **json.loads(part.configuration or "{}"))
        except Exception as error:  # the tokenizers library raises bare Exception
            raise InputError(f"{part.folder}: cannot be loaded as CLIPTokenizer: {first_line(error)}") from error
