"""Asynchronous V1 nodes run."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from trivial_nodes import RecordingContext, node
from v1_classes import failure, pack_class, problem, run_v1, saved, types

from katz_graph.core.errors import Cancelled, InputError
from katz_graph.executor.graph.lists import Listed


def sleeper(log: list[str]) -> type:
    async def go(self: Any, name: str, seconds: float) -> Any:
        log.append(f"{name} starts")
        await asyncio.sleep(seconds)
        log.append(f"{name} ends")
        return (name,)

    return pack_class(go, {"name": ("STRING",), "seconds": ("FLOAT",)}, returns=("STRING",))


def test_asynchronous_nodes_overlap_with_each_other_and_with_the_rest() -> None:
    log: list[str] = []

    def slow(self: Any) -> Any:
        time.sleep(0.2)
        log.append("slow")
        return (1,)

    document = {
        "0": node("Slow"),
        **{name: node("Sleep", name=name, seconds=0.2) for name in ("a", "b", "c")},
        **{f"save {name}": node("Save", value=[name, 0]) for name in ("0", "a", "b", "c")},
    }
    ran = run_v1(document, {"Sleep": sleeper(log), "Slow": pack_class(slow)})
    assert ran.result.outputs["save b"] == ("b",)
    assert log[:3] == ["a starts", "b starts", "c starts"] and sorted(log[3:]) == [
        "a ends",
        "b ends",
        "c ends",
        "slow",
    ]


def test_an_asynchronous_node_over_a_list_runs_all_elements_at_once() -> None:
    names = pack_class(
        lambda self: (["a", "b", "c", "d"],), returns=("STRING",), OUTPUT_IS_LIST=(True,)
    )
    document = {
        "n": node("Names"),
        "1": node("Sleep", name=["n", 0], seconds=0.1),
        "save": node("Save", value=["1", 0]),
    }
    log: list[str] = []
    assert run_v1(document, {"Names": names, "Sleep": sleeper(log)}).result.outputs["save"] == (
        Listed(("a", "b", "c", "d")),
    )
    assert log[:4] == ["a starts", "b starts", "c starts", "d starts"]


def test_a_failing_asynchronous_node_is_named() -> None:
    async def broken(self: Any) -> Any:
        await asyncio.sleep(0)
        raise ValueError("shapes do not fit")

    async def leaves(self: Any) -> Any:
        raise SystemExit(3)

    assert f"node 1 (Made): ValueError: shapes do not fit ({Path(__file__).name}:" in failure(
        broken
    )
    assert "node 1 (Made): SystemExit: 3" in failure(leaves)


def test_nothing_where_a_value_was_declared_is_named_by_the_node_that_needs_it() -> None:
    document = {
        "1": node("Made"),
        "2": node("Add", a=["1", 0], b=1),
        "save": node("Save", value=["2", 0]),
    }
    (error,) = run_v1(document, {"Made": pack_class(lambda self: (None,))}).result.failures.values()
    assert str(error) == "node 2 (Add): input a: the linked node returned nothing, expected INT"


def test_a_class_that_leaves_the_program_is_a_problem_of_its_own() -> None:
    def leaves(*_: Any, **__: Any) -> Any:
        raise SystemExit(3)

    with pytest.raises(InputError, match="node Made: SystemExit: 3"):
        types(
            Made=type(
                "Made",
                (),
                {"INPUT_TYPES": leaves, "RETURN_TYPES": (), "FUNCTION": "go", "go": leaves},
            )
        )
    document = {"1": node("Made", x=1)}
    assert "its own check of its inputs failed: SystemExit: 3" in problem(
        document, {"Made": pack_class(leaves, {"x": ("INT",)}, VALIDATE_INPUTS=classmethod(leaves))}
    )
    kind = pack_class(lambda self, x: (x,), {"x": ("INT",)}, IS_CHANGED=classmethod(leaves))
    assert saved(document, {"Made": kind}) == 1


def test_cancelling_stops_asynchronous_nodes_and_their_tasks() -> None:
    log: list[str] = []

    class Leaves:
        RETURN_TYPES, FUNCTION, tasks = ("*",), "go", list[Any]()

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {}

        async def go(self) -> Any:
            async def forever() -> None:
                try:
                    await asyncio.sleep(60)
                finally:
                    log.append("cleaned up")

            self.tasks.append(asyncio.create_task(forever()))
            await asyncio.sleep(0)
            return (1,)

    document = {"1": node("Leaves"), "2": node("Save", value=["1", 0])}
    assert run_v1(document, {"Leaves": Leaves}).result.outputs["2"] == (1,)
    assert log == ["cleaned up"]
    document["3"] = node("Sleep", name="x", seconds=60.0)
    document["4"] = node("Save", value=["3", 0])
    context = RecordingContext()
    threading.Timer(0.5, context.cancel).start()
    started = time.perf_counter()
    with pytest.raises(Cancelled):
        run_v1(document, {"Leaves": Leaves, "Sleep": sleeper([])}, context=context)
    assert time.perf_counter() - started < 3
