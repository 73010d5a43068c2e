"""Recognises weight files by name, for listings, loaders, packs, URLs and uploads. Must not know
their contents.
"""

from __future__ import annotations

from pathlib import PurePath

USUAL_ENDING = ".safetensors"
WEIGHT_ENDINGS = (USUAL_ENDING, ".sft")
PICKLE_ENDINGS = (".ckpt", ".pt", ".pt2", ".pth", ".bin", ".pkl")


def is_weights(name: str | PurePath) -> bool:
    """Returns whether the name has a safetensors extension, in upper or lower case."""
    return str(name).lower().endswith(WEIGHT_ENDINGS)


def is_pickle(name: str | PurePath) -> bool:
    """Returns whether the name has the extension of a weight file that can run code when it is
    opened.
    """
    return str(name).lower().endswith(PICKLE_ENDINGS)


def without_ending(name: str) -> str:
    """Removes the extension of a safetensors file's name; returns other names unchanged."""
    ending = next((one for one in WEIGHT_ENDINGS if name.lower().endswith(one)), "")
    return name[: len(name) - len(ending)]
