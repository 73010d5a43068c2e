"""Provides `comfy_api.v0_0_2` to packs."""

from __future__ import annotations

from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.v3 import io, ui
from katz_graph.comfy.v3.schema import ComfyAPI, ComfyAPISync, ComfyExtension

__all__ = ["IO", "UI", "ComfyAPI", "ComfyAPISync", "ComfyExtension", "io", "ui"]
IO, UI = io, ui
__getattr__ = missing_names(__name__, "Input InputImpl Types Caching")
