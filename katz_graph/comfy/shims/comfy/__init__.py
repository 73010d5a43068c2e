"""Provides `comfy` to packs. Its modules are loaded when they are named, with or without an import
of their own.
"""

from __future__ import annotations

import importlib
from types import ModuleType


def __getattr__(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"comfy.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"comfy.{name} is not in Katz Graph", name=name) from None
