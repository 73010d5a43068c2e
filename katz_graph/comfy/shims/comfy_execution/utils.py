"""Provides `comfy_execution.utils` to packs: the running node."""

from __future__ import annotations

from dataclasses import dataclass

from katz_graph.comfy.missing import missing_names
from katz_graph.node.scope import current

__getattr__ = missing_names(__name__, "CurrentNodeContext")


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """A running node."""

    prompt_id: str
    node_id: str
    list_index: int | None = None


def get_executing_context() -> ExecutionContext | None:
    now = current()
    return None if now is None else ExecutionContext("", now.node)
