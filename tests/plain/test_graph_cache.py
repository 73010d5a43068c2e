"""Tests which results come from the cache, and which nodes need not run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import pytest
from trivial_graphs import SUM, custom
from trivial_nodes import TYPES, node, run

from katz_graph.core.graph import Graph, Link, NodeCall
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.node import Node, WithUi
from katz_graph.node.types import ANY, Input
from katz_graph.node.wires import Anything
from katz_graph.packs import Registry

# The cache.


def test_nothing_runs_twice_and_only_changed_nodes_run_again() -> None:
    cache = ResultCache()
    run(SUM, cache)
    again = run(SUM, cache)
    assert again.nodes("start") == [] and again.nodes("cached") == ["4"]
    assert again.result.outputs == {"4": (3,)}
    changed = {**SUM, "3": node("Number", value=5)}
    ran = run(changed, cache)
    assert ran.nodes("start") == ["3", "5", "4"] and ran.nodes("cached") == ["9"]
    assert ran.result.outputs == {"4": (6,)}


def test_ids_and_titles_do_not_matter() -> None:
    cache = ResultCache()
    run(SUM, cache)
    renamed = {
        f"x{name}": {
            **call,
            "inputs": {
                k: [f"x{v[0]}", v[1]] if isinstance(v, list) else v
                for k, v in call["inputs"].items()
            },
        }
        for name, call in SUM.items()
    }
    assert run(renamed, cache).nodes("start") == []


def test_why() -> None:
    cache = ResultCache()
    first = run(SUM, cache)
    assert {first.why(name) for name in ("9", "3", "5", "4")} == {"new"}
    second = run(
        {**SUM, "3": node("Number", value=5), "4": node("Save", value=["5", 0], extra=["9", 0])},
        cache,
    )
    assert second.why("9") == "same inputs as before"
    assert second.why("3") == "input value changed from 2 to 5"
    assert second.why("5") == "input b changed"
    assert second.why("4") == "input value changed; input extra is new"
    third = run(
        {**SUM, "3": node("Echo", value=2), "5": node("Add", a=["9", 0], b=["9", 0])}, cache
    )
    assert third.why("5") == "input b is linked to another output"
    assert (
        run({**SUM, "9": node("Echo", value=1)}, cache).why("9") == "the type changed from Number"
    )
    uncached = ResultCache("none")
    run(SUM, uncached)
    assert run(SUM, uncached).why("9") == "its result was not cached (cache policy none)"


def test_a_fingerprint_decides_too() -> None:
    state = {"file": 1, "runs": 0}

    def read(context: Any, values: Any) -> tuple[int]:
        state["runs"] += 1
        return (state["file"],)

    types = custom("Read", read, fingerprint=lambda context, values: state["file"])
    document = {"1": node("Read"), "2": node("Save", value=["1", 0])}
    cache = ResultCache()
    run(document, cache, types)
    run(document, cache, types)
    assert state["runs"] == 1
    state["file"] = 2
    ran = run(document, cache, types)
    assert ran.result.outputs["2"] == (2,)
    assert ran.why("1") == "data outside the graph has changed"


def test_a_fingerprint_of_nan_is_never_cached() -> None:
    types = custom(
        "Clock", lambda context, values: (0,), fingerprint=lambda context, values: float("nan")
    )
    document = {"1": node("Clock"), "2": node("Save", value=["1", 0])}
    cache = ResultCache()
    run(document, cache, types)
    again = run(document, cache, types)
    assert again.nodes("start") == ["1", "2"]
    assert "never cached" in again.why("2") or "changed" in again.why("1")


def test_a_fingerprint_may_need_a_linked_knob() -> None:
    files = {"a": 1, "b": 1}
    name = Input("name", "STRING", required=True, knob=True)
    types = custom(
        "Read",
        lambda context, v: (f"{v['name']}{files[v['name']]}",),
        (name,),
        fingerprint=lambda context, v: files[v["name"]],
    )
    document = {
        "1": node("Echo", value="a"),
        "2": node("Read", name=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    cache = ResultCache()
    assert run(document, cache, types).result.outputs["3"] == ("a1",)
    assert run(document, cache, types).nodes("start") == []
    files["a"] = 2
    ran = run(document, cache, types)
    assert ran.nodes("start") == ["2", "3"] and ran.result.outputs["3"] == ("a2",)


def test_an_incomparable_value_is_passed_but_not_cached() -> None:
    graph = Graph(
        {"1": NodeCall("Echo", {"value": object()}), "2": NodeCall("Save", {"value": Link("1", 0)})}
    )
    cache = ResultCache()
    run(graph, cache)
    assert run(graph, cache).nodes("start") == ["1", "2"]


def test_equal_nodes_of_one_graph_run_once() -> None:
    document = {
        "1": node("Number", value=4),
        "2": node("Number", value=4),
        "3": node("Add", a=["1", 0], b=["2", 0]),
    }
    ran = run({**document, "4": node("Save", value=["3", 0])})
    assert ran.result.outputs["4"] == (8,)
    assert ran.nodes("start") == ["1", "3", "4"] and ran.why("2") == "same inputs as node 1"


@pytest.mark.parametrize(
    ("policy", "again"), [("classic", []), ("lru:2", ["3"]), ("none", ["9", "3", "5", "4"])]
)
def test_cache_policies(policy: str, again: list[str]) -> None:
    """Under each policy, a node with several readers runs once; `lru:2` caches the last two of four
    results.
    """
    cache = ResultCache.parse(policy)
    document = {**SUM, "6": node("Save", value=["3", 0])} if policy == "lru:2" else SUM
    assert len(run(document, cache).nodes("start")) == len(document) - 1
    ran = (
        run(document, cache, targets=["4"])
        if policy != "lru:2"
        else run(document, cache, targets=["3"])
    )
    assert ran.nodes("start") == again


def test_values_are_released_after_their_last_reader() -> None:
    """Without a cache, a run retains only targets' results and values that lazy nodes may request."""
    alive = WeakSet[Any]()
    most: list[int] = []

    class Big:
        pass

    def make(context: Any, values: Any) -> Any:
        most.append(len(alive))
        big = Big()
        alive.add(big)
        return (big,)

    types = custom("Big", make, (Input("value", ANY, required=False, knob=False),))
    chain: dict[str, Any] = {str(i): node("Big", value=[str(i - 1), 0]) for i in range(1, 50)}
    document = {"0": node("Big"), **chain, "save": node("Save", value=["49", 0])}
    result = run(document, ResultCache("none"), types).result
    assert max(most) <= 2 and len(alive) == 1 and set(alive) == set(result.outputs["save"])
    lazily = {
        **document,
        "condition": node("Echo", value=["save", 0]),
        "lazy": node("Choose", condition=True, on_true=["7", 0]),
    }
    most.clear()
    ran = run({**lazily, "out": node("Save", value=["lazy", 0])}, ResultCache("none"), types)
    assert ran.nodes("start").count("7") == 1


def test_native_nodes_may_be_asynchronous_take_lists_and_have_something_for_editors() -> None:
    class Later(Node, category="test"):
        async def run(self, value: Anything) -> Anything:
            await asyncio.sleep(0)
            return value

    class Split(Node, category="test", gives_lists=(True,)):
        def run(self, value: Anything) -> Anything:
            return [value, value + 1]

    class Count(Node, category="test", takes_lists=True, output=True):
        unit: str = "things"

        def run(self, value: Anything) -> Anything:
            return WithUi(len(value), {"text": [f"{len(value)} {self.unit}"]})  # type: ignore[return-value]

    types = Registry(
        {**TYPES, **{kind.__name__: kind.describe() for kind in (Later, Split, Count)}}
    )
    document = {
        "1": node("Split", value=3),
        "2": node("Later", value=["1", 0]),
        "3": node("Count", value=["2", 0]),
    }
    ran = run(document, types=types)
    assert ran.result.outputs == {"3": (2,)} and ran.result.ui == {"3": {"text": ["2 things"]}}


def test_an_asynchronous_node_inside_a_loop_names_the_way_out() -> None:
    class Later(Node, category="test", output=True):
        async def run(self) -> Anything:
            return 1

    types = Registry({"Later": Later.describe()})

    async def main() -> Any:
        return run({"1": node("Later")}, types=types).result.failures

    (error,) = asyncio.run(main()).values()
    assert (
        str(error)
        == "node 1 (Later): is asynchronous, but this thread already runs an event loop; run the "
        "graph in another thread"
    )


# Lazy inputs.


def lazy(condition: bool, other: int = 2) -> dict[str, Any]:
    return {
        "1": node("Number", value=1),
        "2": node("Number", value=other),
        "3": node("Choose", condition=condition, on_true=["1", 0], on_false=["2", 0]),
        "4": node("Save", value=["3", 0]),
    }


def test_only_the_chosen_side_is_evaluated() -> None:
    ran = run(lazy(True))
    assert ran.nodes("start") == ["1", "3", "4"] and ran.result.outputs["4"] == (1,)
    assert run(lazy(False)).nodes("start") == ["2", "3", "4"]


def test_a_failing_side_that_is_not_chosen_does_not_matter() -> None:
    document = {**lazy(True), "2": node("Fail")}
    assert run(document).result.outputs["4"] == (1,)


def test_a_condition_may_be_computed_and_the_sides_be_cached() -> None:
    document = {**lazy(True), "0": node("Echo", value=True)}
    document["3"] = node("Choose", condition=["0", 0], on_true=["1", 0], on_false=["2", 0])
    cache = ResultCache()
    assert run(document, cache).result.outputs["4"] == (1,)
    assert run(document, cache).nodes("start") == []


def test_a_change_on_the_side_that_is_not_chosen_runs_nothing() -> None:
    cache = ResultCache()
    run(lazy(True, other=2), cache)
    assert run(lazy(True, other=3), cache).nodes("start") == []
    assert run(lazy(False, other=3), cache).result.outputs["4"] == (3,)


def test_needs_is_asked_again_until_it_wants_nothing_more() -> None:
    names = ("a", "b", "c")
    ports = tuple(Input(name, ANY, required=False, knob=False, lazy=True) for name in names)
    asked = []

    def needs(values: Mapping[str, Any]) -> tuple[str, ...]:
        asked.append(sorted(name for name, value in values.items() if value is not None))
        return (*tuple(name for name in names if values[name] is None)[:1], "a", "nonsense")

    types = custom("Slowly", lambda context, values: (sum(values.values()),), ports, needs=needs)
    document: dict[str, Any] = {str(n): node("Number", value=n) for n in (1, 2, 3)}
    document |= {
        "4": node("Slowly", a=["1", 0], b=["2", 0], c=["3", 0]),
        "5": node("Save", value=["4", 0]),
    }
    assert run(document, types=types).result.outputs["5"] == (6,)
    assert asked == [[], ["a"], ["a", "b"]]
