"""Provides `comfy` to packs. Submodules load on first access, even without an import."""

from __future__ import annotations

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"comfy.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"comfy.{name} is not in Katz Graph", name=name) from None
