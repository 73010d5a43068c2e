"""Formats the problems of a prompt as ComfyUI's errors: one for the whole prompt, and those of each
node.

Must not know HTTP. Error types and the keys of `extra_info` are ComfyUI's, because clients read
them; the messages are this project's own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from katz_graph.checks.problem import Checked, Problem, ProblemKind
from katz_graph.checks.validate import readers, upstream
from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.core.messages import show
from katz_graph.files.folders import Folders
from katz_graph.formats.object_info_write import input_config
from katz_graph.node.types import NodeType

MAX_PROBLEMS = 100  # problems listed in one answer; the others are counted
MAX_CHOICES_LISTED = 20
LONGEST_VALUE = 1000  # characters of a value repeated in an error

KINDS: Mapping[ProblemKind, tuple[str, str]] = {
    "unknown_type": ("missing_node_type", "Node type is not installed"),
    "missing_input": ("required_input_missing", "Required input is missing"),
    "unknown_input": ("unknown_input", "Input is ignored"),
    "bad_link": ("bad_linked_input", "Linked input must be a list of a node's id and an output"),
    "dead_link": ("bad_linked_input", "Linked output does not exist"),
    "link_expected": ("bad_linked_input", "Input takes a link, not a value"),
    "link_type": ("return_type_mismatch", "Return type mismatch between linked nodes"),
    "wrong_type": ("invalid_input_type", "Value is not of the input's type"),
    "too_small": ("value_smaller_than_min", "Value is smaller than the minimum"),
    "too_large": ("value_bigger_than_max", "Value is bigger than the maximum"),
    "over_limit": ("value_bigger_than_max", "Value is over a limit of this server"),
    "not_a_choice": ("value_not_in_list", "Value is not in the list"),
    "cycle": ("dependency_cycle", "Nodes depend on each other"),
    "refused": ("custom_validation_failed", "The node does not accept its inputs"),
    "check_failed": ("exception_during_validation", "The node's own check failed"),
    "region": ("custom_validation_failed", "Nodes do not form a loop over steps"),
    "no_output": ("prompt_no_outputs", "Prompt has no outputs"),
}
"""Type and heading of each kind of problem."""

Types = Mapping[str, NodeType]


def error(kind: str, message: str, details: str = "", **extra: Any) -> dict[str, Any]:
    return {"type": kind, "message": message, "details": details, "extra_info": extra}


def prompt_error(checked: Checked) -> dict[str, Any] | None:
    """Returns the error of a prompt if no output can run; None if an output can run. The details
    list all errors, including those of nodes that no output needs. In a prompt without outputs,
    they list only unknown node types, if there are any.
    """
    if checked.targets:
        return None
    nothing_wanted = not checked.refused
    unknown = [
        problem
        for problem in checked.problems
        if problem.kind == "unknown_type" and (nothing_wanted or problem.severity == "error")
    ]
    details = in_lines(map(str, unknown if nothing_wanted and unknown else checked.errors))
    if unknown:
        first = unknown[0]
        return error(
            "missing_node_type",
            f"Node type {show(first.type)} is not installed",
            details,
            **_called(first),
        )
    if nothing_wanted:
        return error(*KINDS["no_output"], details)
    return error("prompt_outputs_failed_validation", "Prompt outputs failed validation", details)


def node_errors(
    checked: Checked, graph: Graph, types: Types, folders: Folders | None = None
) -> dict[str, Any]:
    """Returns the errors by node, each with the outputs that cannot run because of it. `graph` is
    the submitted graph, including rejected values.
    """
    if not checked.errors:
        return {}
    wanted = (*checked.targets, *checked.refused)
    read_by = readers(
        {
            node: [link.node for _, link in call.links() if link.node in graph.nodes]
            for node, call in graph.nodes.items()
        }
    )
    found: dict[str, Any] = {}
    for problem in [problem for problem in checked.errors if problem.node][:MAX_PROBLEMS]:
        if problem.node not in found:
            behind = upstream(read_by, [problem.node])
            dependent = [target for target in wanted if target in behind]
            found[problem.node] = {
                "errors": [],
                "dependent_outputs": dependent,
                "class_type": problem.type,
            }
        found[problem.node]["errors"].append(_node_error(problem, graph, types, folders))
    return found


def in_lines(lines: Iterable[str]) -> str:
    """Joins the first lines for the user, and counts the rest."""
    known = list(lines)
    return "\n".join(
        known[:MAX_PROBLEMS]
        + (
            [f"and {len(known) - MAX_PROBLEMS:,} more problems"]
            if len(known) > MAX_PROBLEMS
            else []
        )
    )


def _node_error(
    problem: Problem, graph: Graph, types: Types, folders: Folders | None
) -> dict[str, Any]:
    kind, heading = KINDS[problem.kind]
    details = f"{problem.input}: {problem.message}" if problem.input else problem.message
    return error(
        kind, heading, details, **_extra(problem, graph.nodes[problem.node], graph, types, folders)
    )


def _extra(
    problem: Problem, call: NodeCall, graph: Graph, types: Types, folders: Folders | None
) -> dict[str, Any]:
    if problem.kind == "unknown_type":
        return _called(problem)
    if problem.kind == "cycle":
        return {"node_id": problem.node, "cycle_nodes": list(problem.cycle)}
    extra: dict[str, Any] = {}
    if problem.input:
        port = types[call.type].inputs.get(problem.input) if call.type in types else None
        extra = {
            "input_name": problem.input,
            "input_config": None if port is None else _short(input_config(port, folders)),
        }
        value = call.inputs.get(problem.input)
        if isinstance(value, Link):
            extra |= {
                "linked_node": [value.node, value.output],
                "received_type": _socket(value, graph, types),
            }
        elif problem.input in call.inputs:
            extra["received_value"] = _shortened(value)
    if problem.kind in ("wrong_type", "check_failed"):
        extra["exception_message"] = problem.message
    return extra


def _called(problem: Problem) -> dict[str, Any]:
    return {
        "node_id": problem.node,
        "class_type": problem.type,
        "node_title": problem.title or problem.type,
    }


def _short(config: Sequence[Any]) -> list[Any] | None:
    """Returns the config; None if it has a long list of choices."""
    choices = config[0] if isinstance(config[0], list) else config[1].get("options")
    return None if isinstance(choices, list) and len(choices) > MAX_CHOICES_LISTED else list(config)


def _socket(link: Link, graph: Graph, types: Types) -> str | None:
    source = graph.nodes.get(link.node)
    outputs = types[source.type].outputs if source is not None and source.type in types else ()
    return outputs[link.output].socket if 0 <= link.output < len(outputs) else None


def _shortened(value: Any) -> Any:
    """Returns a value unchanged, or a short description of a long one."""
    return value if len(json.dumps(value)) <= LONGEST_VALUE else show(value)
