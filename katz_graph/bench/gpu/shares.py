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
MOST, NAME = 20, 70  # kernels that are told by themselves, and letters of their names


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


def longest(events: Iterable[tuple[str, float, float]], total: float) -> dict[str, float]:
    """Returns the shares of the kernels that took most of `total` seconds, by their names."""
    found: dict[str, float] = defaultdict(float)
    for name, begin, end in events:
        found[name[:NAME]] += end - begin
    most = sorted(found, key=lambda name: -found[name])[:MOST]
    return {name: found[name] / total for name in most}


def class_of(name: str) -> str:
    lower = name.lower()
    return next(
        (kind for kind, words in CLASSES.items() if any(word in lower for word in words)), OTHER
    )
