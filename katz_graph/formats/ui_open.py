"""Converts any workflow to the form that editors open. Returns an editor's document unchanged after
checking its structure, so that no part is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_document import is_ui, parse_ui
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import is_native
from katz_graph.node.types import NodeType

EditorDocument = tuple[Mapping[str, Any], tuple[str, ...]]
"""An editor's document, and lines for the user."""


def editors_document(document: Any) -> Mapping[str, Any] | None:
    """Returns the editor's document: the given one, the one in a picture's wrapper, or None."""
    workflow = (
        document.get("workflow")
        if isinstance(document, Mapping) and is_native(document)
        else document
    )
    return workflow if isinstance(workflow, Mapping) and is_ui(workflow) else None


def check_editors_document(document: Mapping[str, Any], max_nodes: int) -> None:
    """Raises InputError, with a line per problem, if no graph can be read from the document.
    Unknown types and missing links are not problems.
    """
    parsed = parse_ui(document)
    nodes = sum(len(graph.nodes) for graph in (parsed.root, *parsed.subgraphs.values()))
    if nodes > max_nodes:
        raise InputError(f"has {nodes:,} nodes, more than the limit of {max_nodes:,}")


def editor_document(document: Any, types: Mapping[str, NodeType]) -> EditorDocument:
    """Converts another format to an editor's document. InputError if it cannot be read."""
    workflow = parse_workflow(document, types)
    if not workflow.graph.nodes:
        raise InputError("has no nodes")
    return to_ui(workflow, signatures(types)), workflow.notes
