"""Provides `comfy_api.latest._ui` to packs."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.v3 import ui


def __getattr__(name: str) -> Any:
    return getattr(ui, name)
