"""Any graph, sound or broken, ends with a result or with problems that name a node: never a
traceback, never a hang.
"""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trivial_nodes import TYPES, RecordingContext, run

from katz_graph.checks.validate import check
from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.graph import Graph
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.api import from_api
from katz_graph.node.scope import ExecutionBlocker
from katz_graph.packs import Registry

STEPS = 5_000  # executed nodes; more is a hang
SECONDS = 10.0


class Base:
    RETURN_TYPES, FUNCTION, CATEGORY = ("*",), "go", "fuzz"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {}, "optional": {"a": ("*", {}), "b": ("INT", {"min": -3, "max": 5})}}


class Pair(Base):
    OUTPUT_IS_LIST = (True,)

    def go(self, a: Any = 1, b: Any = 2) -> Any:
        return ([a, b],)


class Empty(Base):
    OUTPUT_IS_LIST = (True,)

    def go(self, **values: Any) -> Any:
        return ([],)


class Whole(Base):
    INPUT_IS_LIST, OUTPUT_IS_LIST = True, (True,)

    def go(self, a: Any = (), b: Any = ()) -> Any:
        return ([*a, *b][:3],)


class Block(Base):
    def go(self, a: Any = None, b: Any = 0) -> Any:
        return (ExecutionBlocker("blocked on purpose" if b else None),)


class Lazy(Base):
    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"a": ("*", {"lazy": True})},
            "optional": {"b": ("*", {"lazy": True}), "c": ("*", {})},
        }

    def check_lazy_status(self, a: Any, b: Any = None, c: Any = None) -> Any:
        return ["a"] if a is None else ["b", "nonsense"] if c else []

    def go(self, a: Any, b: Any = None, c: Any = None) -> Any:
        return (a if b is None else b,)


class Slow(Base):
    async def go(self, a: Any = None, b: Any = 0) -> Any:
        asyncio.get_running_loop().create_task(asyncio.sleep(30))
        for _ in range(3):
            await asyncio.sleep(0)
        if b == 4:
            raise ValueError("late")
        return (a,)


class Changing(Base):
    def go(self, a: Any = None, b: Any = 0) -> Any:
        return (a,)

    @classmethod
    def IS_CHANGED(cls, a: Any = None, b: Any = 0) -> Any:
        return float("nan") if b else 1 // (a or 0)

    @classmethod
    def VALIDATE_INPUTS(cls, b: Any = 0) -> Any:
        return "no fives" if b == 5 else True


class Grows(Base):
    """Expands to a graph that may be sound, recursive, cyclic or broken."""

    def go(self, a: Any = None, b: Any = 0) -> Any:
        kinds = {0: "Pair", 1: "Slow", 2: "Fails", 3: "Grows", 4: "Nowhere", 5: "Block"}
        inner = {
            "x": {"class_type": kinds.get(b, "Lazy"), "inputs": {"a": a, "b": 0}},
            "y": {
                "class_type": "Whole",
                "inputs": {"a": ["x", 0], "b": ["y" if b == -1 else "x", 0]},
            },
        }
        return {
            "expand": inner,
            "result": (["y" if b != -2 else "gone", 0],),
            "ui": {"text": ["grown"]},
        }


class Odd(Base):
    def go(self, a: Any = None, b: Any = 0) -> Any:
        return {0: (1, 2), 1: None, 2: {}, 3: {"expand": {"a": 3}}, 4: "text"}.get(b, (a,))


class Fails(Base):
    def go(self, **values: Any) -> Any:
        raise RuntimeError("on purpose\nwith details")


class Out(Base):
    RETURN_TYPES, OUTPUT_NODE = (), True

    def go(self, a: Any = None, **more: Any) -> Any:
        return {"ui": {"text": [str(a)]}}


CLASSES = (Pair, Empty, Whole, Block, Lazy, Slow, Changing, Grows, Odd, Fails, Out)
REGISTRY = Registry(
    {
        **TYPES,
        **{cls.__name__: V1Class(cls.__name__, cls, cls.__name__).describe() for cls in CLASSES},
    }
)
KINDS = [cls.__name__ for cls in CLASSES if cls is not Out]
BREAKS = ("value", "type", "link", "output", "cycle", "missing", "extra")
VALUES = st.sampled_from([None, True, 1.5, "x", "3", [], {"k": 1}, ["0", "1"], 99, 5])


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a graph whose nodes read earlier ones, with outputs at the end, and breaks up to two
    things.
    """

    def read(number: int) -> Any:
        return (
            [str(draw(st.integers(0, number - 1))), 0]
            if number and draw(st.integers(0, 3))
            else draw(st.integers(-3, 5))
        )

    count = draw(st.integers(1, 8))
    nodes: dict[str, Any] = {}
    for number in range(count):
        kind = draw(st.sampled_from([*KINDS, "Grows", "Lazy", "Pair", "Choose"]))
        inputs = {"a": read(number), "b": draw(st.integers(-2, 4))}
        if kind == "Choose":
            inputs = {
                "condition": bool(inputs["b"] % 2),
                "on_true": read(number),
                "on_false": read(number),
            }
        elif kind == "Lazy":
            inputs |= {"b": read(number), "c": draw(st.booleans())}
        nodes[str(number)] = {"class_type": kind, "inputs": inputs}
    for number in range(draw(st.integers(1, 3))):
        kind, name = draw(st.sampled_from([("Out", "a"), ("Save", "value")]))
        nodes[f"out {number}"] = {
            "class_type": kind,
            "inputs": {name: [str(draw(st.integers(0, count - 1))), 0]},
        }
    for what in draw(st.lists(st.sampled_from(BREAKS), max_size=2)):
        broken = nodes[draw(st.sampled_from(sorted(nodes)))]
        name = draw(st.sampled_from(sorted(broken["inputs"]) or ["a"]))
        match what:
            case "value":
                broken["inputs"][name] = draw(VALUES)
            case "type":
                broken["class_type"] = draw(
                    st.sampled_from(["Nowhere", "Number", "Countdown", "Add"])
                )
            case "link":
                broken["inputs"][name] = ["gone", 0]
            case "output":
                broken["inputs"][name] = ["0", draw(st.sampled_from([1, -1, 99]))]
            case "cycle":
                broken["inputs"][name] = [draw(st.sampled_from(sorted(nodes))), 0]
            case "missing":
                broken["inputs"].pop(name, None)
            case "extra":
                broken["inputs"]["extra"] = draw(st.sampled_from([["0", 0], ["gone", 0], 7]))
    return nodes


RUNS = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))


class Watch:
    """Fails the test if a run does not return."""

    def __enter__(self) -> RecordingContext:
        self.context = RecordingContext(cancel_after=STEPS)
        self.timer = threading.Timer(SECONDS, self.context.cancel)
        self.timer.start()
        return self.context

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()


def account(graph: Graph, targets: tuple[str, ...], cache: ResultCache) -> list[str]:
    """Runs a graph, checks its result, and returns the reached targets."""
    with Watch() as context:
        result = run(graph, cache, REGISTRY, targets=targets, context=context).result
    assert sorted((*result.outputs, *result.refused)) == sorted(targets)
    assert bool(result.failures) >= bool(result.refused)
    for error in result.failures.values():
        assert isinstance(error, KatzError) and str(error).startswith("node ")
        assert all(
            line.isprintable() and "Traceback" not in line for line in str(error).split("\n")
        )
    return sorted(result.outputs)


@RUNS
@given(documents())
def test_any_graph_ends_with_results_or_named_problems(document: dict[str, Any]) -> None:
    try:
        checked = check(from_api(document), REGISTRY)
    except InputError as error:
        assert str(error).isprintable()
        return
    assert all(str(problem).isprintable() for problem in checked.problems)
    assert bool(checked.errors) == bool(checked.refused) or not checked.targets
    if checked.targets:
        cache = ResultCache()
        reached = account(checked.graph, checked.targets, cache)
        assert account(checked.graph, checked.targets, cache) == reached
        assert account(checked.graph, checked.targets, ResultCache("none")) == reached


@RUNS
@given(documents())
def test_an_unvalidated_graph_ends_too(document: dict[str, Any]) -> None:
    graph = from_api(document)
    with Watch() as context:
        try:
            run(
                graph, None, REGISTRY, targets=list(graph.nodes), context=context
            ).result.raise_failures()
        except KatzError as error:
            assert str(error), traceback.format_exc()


def test_the_watch_sees_a_hang() -> None:
    endless = V1Class(
        "Endless", type("Endless", (Base,), {"go": lambda self, a=None, b=0: again}), "Endless"
    ).describe()
    again = {"expand": {"x": {"class_type": "Endless", "inputs": {}}}, "result": (["x", 0],)}
    graph = from_api({"1": {"class_type": "Endless", "inputs": {}}})
    with Watch() as context, pytest.raises(KatzError, match="cancelled"):
        run(graph, None, Registry({"Endless": endless}), targets=["1"], context=context)
