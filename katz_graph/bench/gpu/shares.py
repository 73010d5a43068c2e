"""Sums a device's kernels by what they do, from the names that libraries give them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

CLASSES: Mapping[str, tuple[str, ...]] = {
    "attention": ("attention", "flash", "fmha", "sdpa", "_sdp"),
    "convolution": ("conv", "fprop", "implicit", "cudnn"),
    "product": ("gemm", "nvjet", "cutlass", "cublas", "linear_geglu"),
    "norm": ("norm", "welford"),
    "gate": ("geglu", "gelu"),
    "copy": ("memcpy", "memset", "copy", "cat"),
}
OTHER = "other"


def shares(events: Iterable[tuple[str, float, float]], total: float) -> dict[str, float]:
    """Returns each class's share of `total` seconds, and that of `gaps` in which nothing ran; none
    without events. `events`: name, begin and end in seconds.
    """
    found: dict[str, float] = defaultdict(float)
    busy, until = 0.0, float("-inf")
    for name, begin, end in sorted(events, key=lambda event: event[1]):
        found[class_of(name)] += end - begin
        busy += max(0.0, end - max(begin, until))
        until = max(until, end)
    if not found:
        return {}
    return {name: took / total for name, took in found.items()} | {"gaps": 1 - busy / total}


def class_of(name: str) -> str:
    lower = name.lower()
    return next(
        (kind for kind, words in CLASSES.items() if any(word in lower for word in words)), OTHER
    )
