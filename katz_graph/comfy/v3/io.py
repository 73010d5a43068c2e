"""Provides the module `io` for packs: all names for declaring a node class."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.missing import missing_names
from katz_graph.comfy.v3.dynamic import Autogrow, DynamicCombo, DynamicSlot, MatchType
from katz_graph.comfy.v3.inputs import (
    WIRES,
    AnyType,
    Boolean,
    Color,
    Combo,
    ComfyType,
    ControlAfterGenerate,
    Custom,
    Float,
    FolderType,
    Input,
    Int,
    MultiCombo,
    MultiType,
    NumberDisplay,
    Output,
    RemoteOptions,
    String,
    UploadType,
    WidgetInput,
    comfytype,
)
from katz_graph.comfy.v3.schema import ComfyNode, Hidden, HiddenHolder, NodeOutput, Schema

__all__ = [
    "AnyType",
    "Autogrow",
    "Boolean",
    "Color",
    "Combo",
    "ComfyNode",
    "ComfyType",
    "ControlAfterGenerate",
    "Custom",
    "DynamicCombo",
    "DynamicSlot",
    "Float",
    "FolderType",
    "Hidden",
    "HiddenHolder",
    "Input",
    "Int",
    "MatchType",
    "MultiCombo",
    "MultiType",
    "NodeOutput",
    "NumberDisplay",
    "Output",
    "RemoteOptions",
    "Schema",
    "String",
    "UploadType",
    "WidgetInput",
    "comfytype",
]
ComfyTypeIO = ComfyTypeI = ComfyType
Remote = RemoteOptions
Upload = UploadType
_missing = missing_names(
    "comfy_api.latest.io",
    "PriceBadge PriceBadgeDepends NodeReplace ImageCompare File3D AnyFile3D",
)


def __getattr__(name: str) -> Any:
    """Returns link types that have only a name."""
    return WIRES[name] if name in WIRES else _missing(name)
