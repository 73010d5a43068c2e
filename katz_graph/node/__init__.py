"""Describes nodes, and provides what they are written with.

Everything else works with the description, `NodeType` (validation, graph run, editor, help).
`Node.describe()` makes it from a class; adapters make it from ComfyUI's V1 and V3 nodes. Importing
this never imports torch.
"""

from katz_graph.node.native import FileChoice, Grows, Node
from katz_graph.node.types import ShownFor, Widget, WithUi

__all__ = ["FileChoice", "Grows", "Node", "ShownFor", "Widget", "WithUi"]
