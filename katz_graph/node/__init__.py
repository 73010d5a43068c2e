"""Defines the base class and the description of node types.

All other modules (validation, graph run, editor, help) read the description, `NodeType`.
`Node.describe()` derives it from a class; adapters derive it from ComfyUI's V1 and V3 nodes. Never
imports torch.
"""

from katz_graph.node.native import FileChoice, Grows, Node
from katz_graph.node.types import ShownFor, Widget, WithUi

__all__ = ["FileChoice", "Grows", "Node", "ShownFor", "Widget", "WithUi"]
