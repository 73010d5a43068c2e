"""Reads the kernels' tile sizes, committed per architecture and size class.

No tuning runs at startup.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from math import log2
from pathlib import Path

import torch

from katz_graph.kernels.dispatch import COMPILED_FOR

FILE = Path(__file__).with_name("configurations.json")
CALLS_KNOWN = 1024
INTERPRETED_AS = 80  # architecture assumed when a CPU interprets kernels

Tiles = Mapping[str, int]
"""Maps a kernel's constants, and `num_warps` and `num_stages`, to numbers."""
Configurations = Mapping[str, Mapping[str, Mapping[str, Tiles]]]
"""Maps kernel -> architecture (sm90) -> sizes (2048x1280) -> tiles."""


@lru_cache(maxsize=CALLS_KNOWN)
def tiles(kernel: str, device: torch.device, *sizes: int) -> Tiles:
    """Returns a kernel's tiles for these sizes; empty if a library is faster. Uses the listed sizes
    that differ least by ratio.
    """
    listed = listed_for(kernel, capability(device))
    return listed[min(listed, key=lambda name: _apart(sizes, name))]


def listed_for(kernel: str, architecture: int) -> Mapping[str, Tiles]:
    """Returns the tiles of a kernel by sizes, for an architecture (90 for sm90): the entry of the
    newest listed architecture that is not newer, otherwise of the oldest.
    """
    listed = {int(name.removeprefix("sm")): by_size for name, by_size in read()[kernel].items()}
    older = [number for number in listed if number <= architecture]
    return listed[max(older, default=min(listed))]


@cache
def read() -> Configurations:
    """Returns all committed configurations."""
    found: Configurations = json.loads(FILE.read_text())
    return found


def _apart(sizes: tuple[int, ...], name: str) -> float:
    others = map(int, name.split("x"))
    return sum(abs(log2(one / other)) for one, other in zip(sizes, others, strict=True))


def capability(device: torch.device) -> int:
    """Returns a device's compute capability, such as 90 for 9.0."""
    if device.type != "cuda":
        return COMPILED_FOR.get() or INTERPRETED_AS
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor
