"""Provides the hidden inputs of ComfyUI pack nodes: their id, the workflow, and the graph with its
expansions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from katz_graph.core.graph import Graph, Link
from katz_graph.executor.graph.node_state import NodeState, States
from katz_graph.formats.api import to_api
from katz_graph.node.types import Context

UNIQUE_ID, PROMPT, DYNPROMPT, EXTRA_PNGINFO = "UNIQUE_ID", "PROMPT", "DYNPROMPT", "EXTRA_PNGINFO"


class HiddenInputs:
    """Provides the hidden values of one run. `prompt` and other image metadata come from the
    context.
    """

    def __init__(self, states: States, file: Graph, context: Context) -> None:
        self._states, self._file, self._context = states, file, context

    def value(self, kind: str, node: NodeState) -> Any:
        """Returns a hidden value; None for unavailable ones, such as keys to other services."""
        match kind:
            case "UNIQUE_ID":
                return node.id
            case "PROMPT":
                return self.prompt
            case "EXTRA_PNGINFO":
                return self.extra
            case "DYNPROMPT":
                return self.dynamic
        return None

    @cached_property
    def prompt(self) -> dict[str, Any]:
        parsed = _parsed(self._context.metadata.get("prompt"))
        return parsed if isinstance(parsed, dict) else to_api(self._file)

    @cached_property
    def extra(self) -> dict[str, Any]:
        return {
            name: _parsed(text) for name, text in self._context.metadata.items() if name != "prompt"
        }

    @cached_property
    def dynamic(self) -> DynamicPrompt:
        return DynamicPrompt(self._states, self.prompt)


class DynamicPrompt:
    """Presents the graph of a run, including expansions, in ComfyUI's terms: nodes as in the API
    format, links as lists.
    """

    def __init__(self, states: States, original_prompt: dict[str, Any]) -> None:
        self._states, self.original_prompt = states, original_prompt

    def get_original_prompt(self) -> dict[str, Any]:
        return self.original_prompt

    def has_node(self, node_id: str) -> bool:
        return node_id in self._states

    def get_node(self, node_id: str) -> dict[str, Any]:
        """Returns a node in the API format. Raises KeyError if it does not exist."""
        call = self._states[node_id].call
        inputs = {
            name: [value.node, value.output] if isinstance(value, Link) else value
            for name, value in call.inputs.items()
        }
        return {"class_type": call.type, "inputs": inputs} | (
            {"_meta": {"title": call.title}} if call.title else {}
        )

    def all_node_ids(self) -> set[str]:
        return set(self._states)

    def get_display_node_id(self, node_id: str) -> str:
        return self._states[node_id].origin if node_id in self._states else node_id

    def get_parent_node_id(self, node_id: str) -> str | None:
        state = self._states.get(node_id)
        return None if state is None or state.parent is None else state.parent.id

    def get_real_node_id(self, node_id: str) -> str:
        """Returns the file's node that created this one."""
        state = self._states.get(node_id)
        while state is not None and state.parent is not None:
            state = state.parent
        return node_id if state is None else state.id


def _parsed(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def sees_graph(hidden: Mapping[str, str]) -> bool:
    """Returns whether a node's code can see other nodes, and so link to them."""
    return DYNPROMPT in hidden.values()
