"""Checks a prompt in any format. Returns the graph that will run, or the errors in ComfyUI's
wording.

Must not know processes and HTTP. Never raises an exception for JSON data. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from katz_graph.checks.problem import ProblemKind
from katz_graph.checks.validate import RULES, Rule, check
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph
from katz_graph.core.messages import one_line, shorten
from katz_graph.files.folders import Folders
from katz_graph.formats.api import to_api
from katz_graph.formats.prompt_errors import (
    MAX_PROBLEMS,
    error,
    in_lines,
    node_errors,
    prompt_error,
)
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.ui_document import is_ui
from katz_graph.formats.ui_open import editors_document
from katz_graph.formats.workflow import Workflow, is_native
from katz_graph.node.types import NodeType
from katz_graph.web.options import Limits
from katz_graph.web.runner.limits import limit_problems
from katz_graph.web.runner_client.facts import CheckedPrompt

INPUTS = 20  # average inputs per node that a prompt with the maximum number of nodes may have


def check_prompt(
    document: Any,
    targets: Sequence[str] | None,
    registry: Mapping[str, NodeType],
    folders: Folders | None,
    limits: Limits,
) -> CheckedPrompt:
    """Checks a document: API format, an editor's workflow, or Katz Graph's wrapper. `targets`: the
    output nodes to run; None: all.
    """
    try:
        workflow = parsed(document, registry, limits)
    except Malformed as malformed:
        return CheckedPrompt(error=malformed.error)
    graph = workflow.graph
    wanted, passed_over = (None, ()) if targets is None else _outputs(targets, graph, registry)
    rules: Mapping[ProblemKind, Rule] = {**RULES, "over_limit": partial(limit_problems, limits)}
    found = check(graph, registry, folders, rules, wanted, defaults=not workflow.is_prompt)
    why_nothing = prompt_error(found)
    return CheckedPrompt(
        prompt=to_api(found.graph) if why_nothing is None else None,
        targets=found.targets,
        refused=found.refused,
        error=why_nothing,
        node_errors=node_errors(found, graph, registry, folders),
        notes=(*workflow.notes, *passed_over, *map(str, found.warnings))[:MAX_PROBLEMS],
        workflow=editors_document(document),
    )


class Malformed(InputError):
    """Reports a document from which no graph can be read, or one that is too large. `error` is in
    ComfyUI's format.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(f"{error['message']}: {error['details']}")
        self.error = error


def parsed(document: Any, registry: Mapping[str, NodeType], limits: Limits) -> Workflow:
    """Parses a document of any format. Raises Malformed if it is invalid or has too many nodes."""
    if document is None:
        raise Malformed(error("no_prompt", "No prompt provided", "No prompt provided"))
    if isinstance(document, Mapping) and not document:
        raise Malformed(
            error("prompt_no_outputs", "Prompt has no outputs", "the prompt has no nodes")
        )
    _check_size(_nodes_in(document), limits)
    nameless = _nameless(document)
    if nameless is not None:
        raise Malformed(nameless)
    try:
        workflow = parse_workflow(document, registry)
    except InputError as wrong:
        lines = in_lines(str(wrong).split("\n"))
        raise Malformed(error("invalid_prompt", "Prompt is malformed", lines)) from None
    nodes = workflow.graph.nodes
    _check_size(len(nodes), limits, sum(len(call.inputs) for call in nodes.values()))
    return workflow


def _nodes_in(document: Any) -> int:
    """Counts a document's nodes before parsing; the nodes of each subgraph count once."""
    if not isinstance(document, Mapping):
        return 0
    if is_native(document):
        graph = document.get("graph")
        return len(graph) if isinstance(graph, Mapping) else 0
    if not is_ui(document):
        return len(document)
    definitions = document.get("definitions")
    subgraphs = definitions.get("subgraphs") if isinstance(definitions, Mapping) else None
    inside = (
        [graph.get("nodes") for graph in subgraphs if isinstance(graph, Mapping)]
        if isinstance(subgraphs, list)
        else []
    )
    return sum(len(nodes) for nodes in (document["nodes"], *inside) if isinstance(nodes, list))


def _check_size(nodes: int, limits: Limits, inputs: int = 0) -> None:
    most = limits.nodes * INPUTS
    if nodes <= limits.nodes and inputs <= most:
        return
    details = f"{nodes:,} nodes, more than this server's limit of {limits.nodes:,} (nodes)"
    if nodes <= limits.nodes:
        details = (
            f"{inputs:,} inputs, more than {INPUTS} for each of the {limits.nodes:,} that "
            "this server's limit allows (nodes)"
        )
    raise Malformed(
        error("invalid_prompt", "Prompt is too large", details, limit="nodes", max=limits.nodes)
    )


def _nameless(document: Any) -> dict[str, Any] | None:
    """Returns ComfyUI's separate error for a node without a type."""
    if not isinstance(document, Mapping) or is_native(document) or is_ui(document):
        return None
    for identifier, node in document.items():
        if isinstance(node, Mapping) and "class_type" not in node:
            meta = node.get("_meta")
            title = meta.get("title") if isinstance(meta, Mapping) else None
            details = f'node {one_line(shorten(str(identifier)))} has no "class_type"'
            extra = {
                "node_id": str(identifier),
                "class_type": None,
                "node_title": title if isinstance(title, str) else None,
            }
            return error("missing_node_type", "A node has no class_type", details, **extra)
    return None


def _outputs(
    targets: Sequence[str], graph: Graph, registry: Mapping[str, NodeType]
) -> tuple[list[str], tuple[str, ...]]:
    """Selects the targets that are output nodes or have an unknown type; writes one line for each
    other target.
    """

    def why_not(target: str) -> str:
        call = graph.nodes.get(target)
        if call is None:
            return "is not in the prompt"
        return (
            ""
            if call.type not in registry or registry[call.type].is_output
            else "is not an output node"
        )

    reasons = {target: why_not(target) for target in targets}
    lines = (
        f"node {one_line(shorten(target))} {why} and is left out"
        for target, why in reasons.items()
        if why
    )
    return [target for target, why in reasons.items() if not why], tuple(lines)
