"""Defines the extension of a ComfyUI V3 pack, which has its nodes, and the API object that it may
ask for. Must not know nodes.
"""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.missing import refuse
from katz_graph.comfy.progress import ProgressBar


class ComfyExtension:
    """Lists the nodes of a pack."""

    async def on_load(self) -> None:
        """Runs once, before the nodes are asked for."""

    async def get_node_list(self) -> list[type]:
        raise NotImplementedError


class _Execution:
    async def set_progress(self, value: float, max_value: float, node_id: str | None = None, preview_image: Any = None, **_: Any) -> None:
        ProgressBar(int(max_value), node_id).update_absolute(int(value), preview=preview_image)


class _NodeReplacement:
    async def register(self, node_replace: Any) -> None:
        """Does nothing: only editors ask which old node a new one stands for."""


class ComfyAPI:
    """Offers the API of a running node, for awaiting."""

    def __init__(self) -> None:
        self.execution, self.node_replacement = _Execution(), _NodeReplacement()

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy_api.latest.ComfyAPI.{name}")


class _ExecutionSync:
    def set_progress(self, value: float, max_value: float, node_id: str | None = None, preview_image: Any = None, **_: Any) -> None:
        ProgressBar(int(max_value), node_id).update_absolute(int(value), preview=preview_image)


class ComfyAPISync:
    """Offers the same to code that does not await."""

    def __init__(self) -> None:
        self.execution = _ExecutionSync()

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy_api.latest.ComfyAPISync.{name}")
