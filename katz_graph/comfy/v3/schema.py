"""Defines the parts of a ComfyUI V3 class (schema, return value, base class) and of a V3 pack (the
extension with its nodes, the API object for running nodes). Must not know the executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from katz_graph.comfy.missing import refuse
from katz_graph.comfy.running import ProgressBar
from katz_graph.comfy.v3.inputs import Input, Output
from katz_graph.node.scope import ExecutionBlocker


class Hidden(StrEnum):
    """Names the hidden values that a run can pass to a node."""

    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"
    auth_token_comfy_org = "AUTH_TOKEN_COMFY_ORG"
    api_key_comfy_org = "API_KEY_COMFY_ORG"


class HiddenHolder:
    """The hidden values of one call; None for values that the schema does not request or the run
    does not have.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return None


@dataclass(slots=True)
class Schema:
    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    hidden: list[Hidden] = field(default_factory=list)
    description: str = ""
    search_aliases: list[str] = field(default_factory=list)
    is_input_list: bool = False
    is_output_node: bool = False
    is_deprecated: bool = False
    is_experimental: bool = False
    is_dev_only: bool = False
    is_api_node: bool = False
    price_badge: Any = None
    not_idempotent: bool = False
    enable_expand: bool = False
    accept_all_inputs: bool = False
    essentials_category: str | None = None
    has_intermediate_output: bool = False


class NodeOutput:
    """The result of `execute`: values, ui data, an expansion graph, or a message that blocks
    dependent nodes.
    """

    def __init__(
        self,
        *args: Any,
        ui: Any = None,
        expand: Mapping[str, Any] | None = None,
        block_execution: str | None = None,
    ) -> None:
        self.args, self.ui, self.expand, self.block_execution = args, ui, expand, block_execution

    @property
    def result(self) -> tuple[Any, ...] | None:
        return self.args or None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> NodeOutput:
        """Reads a V1 result."""
        result = data.get("result", ())
        if isinstance(result, ExecutionBlocker):
            return cls(ui=data.get("ui"), expand=data.get("expand"), block_execution=result.message)
        return cls(*result, ui=data.get("ui"), expand=data.get("expand"))


class ComfyNode:
    """Base class of V3 nodes. All methods are class methods; each call uses a subclass with its
    `hidden` values.
    """

    hidden: ClassVar[HiddenHolder] = HiddenHolder({})

    @classmethod
    def define_schema(cls) -> Schema:
        raise NotImplementedError

    @classmethod
    def GET_SCHEMA(cls) -> Schema:
        return cls.define_schema()

    @classmethod
    def execute(cls, **kwargs: Any) -> Any:
        raise NotImplementedError


class ComfyExtension:
    """Lists the nodes of a pack."""

    async def on_load(self) -> None:
        """Called once, before the nodes are listed."""

    async def get_node_list(self) -> list[type]:
        raise NotImplementedError


class _Execution:
    async def set_progress(
        self,
        value: float,
        max_value: float,
        node_id: str | None = None,
        preview_image: Any = None,
        **_: Any,
    ) -> None:
        ProgressBar(int(max_value), node_id).update_absolute(int(value), preview=preview_image)


class _NodeReplacement:
    async def register(self, node_replace: Any) -> None:
        """Does nothing: only editors use the replacement of old nodes."""


class ComfyAPI:
    """The asynchronous API for a running node."""

    def __init__(self) -> None:
        self.execution, self.node_replacement = _Execution(), _NodeReplacement()

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy_api.latest.ComfyAPI.{name}")


class _ExecutionSync:
    def set_progress(
        self,
        value: float,
        max_value: float,
        node_id: str | None = None,
        preview_image: Any = None,
        **_: Any,
    ) -> None:
        ProgressBar(int(max_value), node_id).update_absolute(int(value), preview=preview_image)


class ComfyAPISync:
    """The same API for synchronous code."""

    def __init__(self) -> None:
        self.execution = _ExecutionSync()

    def __getattr__(self, name: str) -> Any:
        refuse(f"comfy_api.latest.ComfyAPISync.{name}")
