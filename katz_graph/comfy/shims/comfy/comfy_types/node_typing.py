"""Provides `comfy.comfy_types.node_typing` to packs."""

from katz_graph.comfy.v1.node_typing import (
    IO,
    CheckLazyMixin,
    ComfyNodeABC,
    FileLocator,
    HiddenInputTypeDict,
    InputTypeDict,
    InputTypeOptions,
)

__all__ = (
    "IO",
    "CheckLazyMixin",
    "ComfyNodeABC",
    "FileLocator",
    "HiddenInputTypeDict",
    "InputTypeDict",
    "InputTypeOptions",
)
