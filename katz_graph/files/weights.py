"""Tells by its name whether a file holds weights: for listings, loaders, packs, URLs and uploads.
Must not know what is in one.
"""

from __future__ import annotations

from pathlib import PurePath

USUAL_ENDING = ".safetensors"
WEIGHT_ENDINGS = (USUAL_ENDING, ".sft")
PICKLE_ENDINGS = (".ckpt", ".pt", ".pt2", ".pth", ".bin", ".pkl")


def is_weights(name: str | PurePath) -> bool:
    """Recognises a safetensors file by its ending, in upper or lower case."""
    return str(name).lower().endswith(WEIGHT_ENDINGS)


def is_pickle(name: str | PurePath) -> bool:
    """Recognises a file of weights that can run code when it is opened, by its ending."""
    return str(name).lower().endswith(PICKLE_ENDINGS)


def without_ending(name: str) -> str:
    """Returns the name of a safetensors file without its ending, any other name as it is."""
    ending = next((one for one in WEIGHT_ENDINGS if name.lower().endswith(one)), "")
    return name[: len(name) - len(ending)]
