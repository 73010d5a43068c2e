"""Provides `comfy_api.latest._io` to packs."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.v3 import io


def __getattr__(name: str) -> Any:
    return getattr(io, name)
