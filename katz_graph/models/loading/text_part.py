"""Tells from the header of a LoRA file whether it has something for text encoders. Never imports
torch.
"""

from __future__ import annotations

from functools import lru_cache

from katz_graph.models.fetching.file_cache import FileCache
from katz_graph.recipe import FileIdentity

MARKS = ("lora_te", "text_encoder", "text_model")
"""In names of tensors: one without any of them is for a network, whoever made the file."""
FILES_KNOWN = 256


@lru_cache(maxsize=FILES_KNOWN)
def taken_by_texts(file: FileIdentity) -> bool:
    """Returns whether a LoRA may change how texts are encoded."""
    return any(mark in key for key in FileCache.of_this_machine().entries(file) for mark in MARKS)
