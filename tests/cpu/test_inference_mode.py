"""Only the code of nodes runs in torch's inference mode, asynchronous code in each of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from trivial_nodes import TYPES, RecordingContext, Thing, node, run
from v1_classes import ANYTHING, pack_class, types

from katz_graph.comfy.v3.adapter import V3Class
from katz_graph.comfy.v3.inputs import AnyType
from katz_graph.comfy.v3.schema import ComfyNode, NodeOutput, Schema
from katz_graph.executor.graph.region_calls import RegionCalls
from katz_graph.host.inference import in_inference_mode
from katz_graph.ir.region import Operation
from katz_graph.node import Node
from katz_graph.node.types import Context, NodeType
from katz_graph.packs import Registry

Modes = list[tuple[bool, bool]]
INFERENCE = (True, False)  # inference mode, gradients


def modes() -> tuple[bool, bool]:
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled()


async def in_steps(seen: Modes) -> None:
    """Records modes around an await and in other tasks."""
    seen.append(modes())
    await asyncio.sleep(0)
    seen.append(modes())

    async def inner() -> None:
        await asyncio.sleep(0)
        seen.append(modes())

    await asyncio.gather(inner(), asyncio.create_task(inner()))
    seen.append(modes())


def v1(seen: Modes) -> NodeType:
    def made(self: Any, **values: Any) -> Any:
        seen.append(modes())
        return (1,)

    return types(Made=pack_class(made))["Made"]


def v1_async(seen: Modes) -> NodeType:
    async def made(self: Any, **values: Any) -> Any:
        await in_steps(seen)
        return (1,)

    return types(Made=pack_class(made))["Made"]


def v1_fingerprint(seen: Modes) -> NodeType:
    def made(self: Any) -> Any:
        return (1,)

    def changed(cls: type) -> int:
        seen.append(modes())
        return 1

    return types(Made=pack_class(made, IS_CHANGED=classmethod(changed)))["Made"]


def v1_async_fingerprint(seen: Modes) -> NodeType:
    def made(self: Any) -> Any:
        return (1,)

    async def changed(cls: type) -> int:
        await in_steps(seen)
        return 1

    return types(Made=pack_class(made, IS_CHANGED=classmethod(changed)))["Made"]


def v1_lazy(seen: Modes) -> NodeType:
    def made(self: Any, a: Any = None) -> Any:
        return (1,)

    async def wanted(self: Any, a: Any = None) -> list[str]:
        await in_steps(seen)
        return ["a"]

    lazy = {"a": (ANYTHING, {"lazy": True})}
    return types(Made=pack_class(made, optional=lazy, check_lazy_status=wanted))["Made"]


def v3_async(seen: Modes) -> NodeType:
    class Made(ComfyNode):
        @classmethod
        def define_schema(cls) -> Schema:
            return Schema(node_id="Made", inputs=[], outputs=[AnyType.Output("x")])

        @classmethod
        async def execute(cls, **values: Any) -> NodeOutput:
            await in_steps(seen)
            return NodeOutput(1)

        @classmethod
        async def fingerprint_inputs(cls, **values: Any) -> int:
            await in_steps(seen)
            return 1

    return V3Class(Made).describe()


def native_async(seen: Modes) -> NodeType:
    class Made(Node, category="test"):
        async def run(self) -> Thing:
            await in_steps(seen)
            return 1

        def fingerprint(self, context: Context) -> int:
            seen.append(modes())
            return 1

    return Made.describe()


KINDS = (
    v1,
    v1_async,
    v1_fingerprint,
    v1_async_fingerprint,
    v1_lazy,
    v3_async,
    native_async,
)


@pytest.mark.defect(18)
@pytest.mark.parametrize("kind", KINDS)
def test_code_of_nodes_runs_in_inference_mode(kind: Callable[[Modes], NodeType]) -> None:
    seen: Modes = []
    registry = Registry({**TYPES, "Made": kind(seen)})
    graph = {
        "0": node("Number", value=1),
        "1": node("Made", **({"a": ["0", 0]} if kind is v1_lazy else {})),
        "2": node("Save", value=["1", 0]),
    }
    ran = run(graph, types=registry)
    assert not ran.result.failures and set(seen) == {INFERENCE}
    assert modes() == (False, True)


@pytest.mark.defect(18)
def test_an_asynchronous_node_changes_a_tensor_of_another_in_place() -> None:
    def made(self: Any) -> Any:
        return (torch.nn.Linear(2, 2)(torch.ones(1, 2)),)

    async def change(self: Any, a: Any) -> Any:
        await asyncio.sleep(0)
        return (a.mul_(2),)

    both = {"Made": pack_class(made), "Change": pack_class(change, {"a": (ANYTHING,)})}
    graph = {
        "1": node("Made"),
        "2": node("Change", a=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    ran = run(graph, types=types(**both))
    assert not ran.result.failures
    assert not ran.result.outputs["3"][0].requires_grad


@pytest.mark.defect(18)
def test_inference_mode_is_per_coroutine() -> None:
    """Two coroutines take turns; one trains."""
    seen: Modes = []
    trained: Modes = []

    async def train(self: Any) -> Any:
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(3):
                trained.append(modes())
                await asyncio.sleep(0)
        trained.append(modes())
        return (1,)

    async def watch(self: Any) -> Any:
        for _ in range(3):
            seen.append(modes())
            await asyncio.sleep(0)
        return (1,)

    both = {"Train": pack_class(train), "Watch": pack_class(watch)}
    graph = {
        "1": node("Train"),
        "2": node("Watch"),
        "3": node("Save", value=["1", 0]),
        "4": node("Save", value=["2", 0]),
    }
    ran = run(graph, types=types(**both))
    assert not ran.result.failures
    assert trained == [*[(False, True)] * 3, INFERENCE]
    assert seen == [INFERENCE] * 3
    assert modes() == (False, True)


@pytest.mark.defect(18)
def test_an_asynchronous_node_inside_a_step_region_of_a_program_with_a_loop() -> None:
    """If a loop runs already, another thread runs the node."""
    seen: Modes = []
    context = RecordingContext(types={"Made": v1_async(seen)})
    calls = RegionCalls(context)  # type: ignore[arg-type]

    async def program() -> None:
        calls.call(Operation("1", "node", "Made", {}), {})

    asyncio.run(program())
    assert set(seen) == {INFERENCE} and len(seen) == 5


def test_cancelling_and_errors_reach_the_coroutine() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            ended.append("closed")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("of its own")

    async def program() -> None:
        task = asyncio.ensure_future(in_inference_mode(waits)())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ValueError, match="of its own"):
            await in_inference_mode(fails)()

    asyncio.run(program())
    assert ended == ["cancelled", "closed"] and modes() == (False, True)
