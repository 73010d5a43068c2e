"""Provides `comfy_execution.graph` to packs."""

from katz_graph.comfy.missing import missing_names
from katz_graph.node.scope import ExecutionBlocker

__all__ = ["ExecutionBlocker"]
__getattr__ = missing_names(
    __name__, "DynamicPrompt ExecutionList TopologicalSort get_input_info NodeNotFoundError"
)
