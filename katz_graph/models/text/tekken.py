"""Reads vocabularies of Mistral's models (tekken: JSON of words with ranks, a pattern and special
words). Converting one takes seconds, so the made tokenizer is stored in the cache.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import transformers
from tokenizers import Tokenizer
from transformers.integrations.mistral import MistralConverter

from katz_graph.core.messages import first_line
from katz_graph.settings.environment import made_tokenizers

START, PADDING = "<s>", "<pad>"


def tekken_tokenizer(model: bytes) -> Any:
    """Builds a tokenizer without start and end tokens. Raises ValueError if the bytes are not a
    tekken vocabulary.
    """
    folder = made_tokenizers()
    place = folder / f"{hashlib.sha256(model).hexdigest()}.json"
    made = None
    with suppress(Exception):  # the tokenizers library raises bare Exception for a damaged file
        made = Tokenizer.from_file(str(place))
    if made is None:
        made = _converted(model)
        with suppress(OSError):  # the next process converts again
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=folder) as whole:
                written = Path(whole) / place.name
                written.write_text(made.to_str(), "utf-8")
                written.replace(place)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=START, pad_token=PADDING
    )


def _converted(model: bytes) -> Tokenizer:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_bytes(model)
        try:
            made: Tokenizer = MistralConverter(str(file)).converted()
        except Exception as error:  # of any kind, for unexpected JSON
            raise ValueError(
                f"not a tekken vocabulary ({type(error).__name__}: {first_line(error)})"
            ) from None
    if made.token_to_id(START) is None or made.token_to_id(PADDING) is None:
        raise ValueError(f"a tekken vocabulary without {START} and {PADDING}")
    return made
