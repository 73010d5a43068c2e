"""Provides `node_helpers` to packs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from katz_graph.comfy.missing import missing_names

T = TypeVar("T")
__getattr__ = missing_names(__name__, "")


def conditioning_set_values(
    conditioning: Any, values: Mapping[str, Any] | None = None, append: bool = False
) -> list[list[Any]]:
    """Sets options of every entry; with `append`, extends existing lists."""
    changed = []
    for tensor, options, *_ in conditioning:
        merged = dict(options)
        for name, value in (values or {}).items():
            merged[name] = (
                [*merged[name], *value] if append and merged.get(name) is not None else value
            )
        changed.append([tensor, merged])
    return changed


def pillow(fn: Callable[..., T], arg: Any) -> T:
    """Returns `fn(arg)`. If it fails, retries with truncated files allowed."""
    from PIL import ImageFile, UnidentifiedImageError

    try:
        return fn(arg)
    except (OSError, UnidentifiedImageError, ValueError):
        before, ImageFile.LOAD_TRUNCATED_IMAGES = ImageFile.LOAD_TRUNCATED_IMAGES, True
        try:
            return fn(arg)
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = before


def hasher() -> Any:
    """Returns the hash for naming files by their content."""
    return hashlib.sha256


def string_to_torch_dtype(string: str) -> Any:
    """Returns the dtype of this name; None for other names."""
    import torch

    known = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    return known.get(string)


def image_alpha_fix(destination: Any, source: Any) -> tuple[Any, Any]:
    """Gives the second picture [B, H, W, C] the channels of the first; missing alpha is opaque."""
    from katz_graph.picture.batch import like_channels

    return destination, like_channels(source, destination.shape[-1])
