"""Provides `comfy.comfy_types` to packs: names of link types, and types for annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from katz_graph.comfy.v1.node_typing import (
    IO,
    CheckLazyMixin,
    ComfyNodeABC,
    FileLocator,
    HiddenInputTypeDict,
    InputTypeDict,
    InputTypeOptions,
)

__all__ = [
    "IO",
    "CheckLazyMixin",
    "ComfyNodeABC",
    "FileLocator",
    "HiddenInputTypeDict",
    "InputTypeDict",
    "InputTypeOptions",
    "UnetApplyConds",
    "UnetApplyFunction",
    "UnetParams",
    "UnetWrapperFunction",
]
UnetApplyFunction = Callable[..., Any]
UnetApplyConds = Mapping[str, Any]
UnetParams = Mapping[str, Any]
UnetWrapperFunction = Callable[[UnetApplyFunction, UnetParams], Any]
