"""What runs, in which order, what is taken from the cache, and what happens when something fails."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy
import pytest
from trivial_nodes import TYPES, Ran, RecordingContext, node, run

from katz_graph.context import Context
from katz_graph.errors import Cancelled, InputError, OutOfMemory, RunError
from katz_graph.events import NodeDone
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.files.folders import MINI
from katz_graph.graph import Expansion, Graph, Link, NodeCall
from katz_graph.models.loading.sources import pipeline_recipes
from katz_graph.node import Node, WithUi
from katz_graph.node.types import ANY, Input, NodeType, Output
from katz_graph.packs import Registry, load_registry
from katz_graph.planner.region import RegionNodes
from katz_graph.recipe import ClipRecipe, Component, ConditioningEntry, Prompt, TextEncoderRecipe
from katz_graph.wires import Anything

COUNT = Input("n", "INT", required=True, knob=True)
SUM = {
    "9": node("Number", value=1),
    "3": node("Number", value=2),
    "5": node("Add", a=["9", 0], b=["3", 0]),
    "4": node("Save", value=["5", 0]),
    "7": node("Number", value=7),
}


def custom(
    name: str, run: Any, inputs: tuple[Input, ...] = (), outputs: int = 1, **options: Any
) -> Registry:
    """The trivial nodes and one more."""
    ports = tuple(Output(f"out{number}", ANY) for number in range(outputs))
    kind = NodeType(
        name,
        name,
        "test",
        "",
        {port.name: port for port in inputs},
        ports,
        options.pop("is_output", False),
        run,
        **options,
    )
    return Registry({**TYPES, name: kind})


# What runs, and in which order.


def test_only_what_the_outputs_need_runs_in_the_order_of_the_file() -> None:
    ran = run(SUM)
    assert ran.result.outputs == {"4": (3,)}
    assert ran.nodes("start") == ["9", "3", "5", "4"]


def test_targets() -> None:
    assert run(SUM, targets=["7", "5"]).nodes("start") == ["9", "3", "5", "7"]
    with pytest.raises(InputError, match='node "99" is to be run'):
        run(SUM, targets=["99"])
    with pytest.raises(InputError, match="no output node"):
        run({"1": node("Number")})
    with pytest.raises(InputError, match="no output node"):
        run(SUM, targets=[])


def test_nodes_that_two_read_run_once() -> None:
    document = {
        "1": node("Number", value=2),
        "2": node("Add", a=["1", 0], b=["1", 0]),
        "3": node("Save", value=["2", 0]),
        "4": node("Save", value=["1", 0]),
    }
    ran = run(document)
    assert ran.result.outputs == {"3": (4,), "4": (2,)}
    assert sorted(ran.nodes("start")) == ["1", "2", "3", "4"]


def test_the_order_does_not_depend_on_the_hash_seed() -> None:
    names = [f"node-{number * 7919 % 101}" for number in range(60)]
    document: dict[str, Any] = {
        name: node("Number", value=number) for number, name in enumerate(names)
    }
    document |= {f"sum-{name}": node("Add", a=[name, 0], b=[names[0], 0]) for name in names}
    document |= {f"out-{name}": node("Save", value=[f"sum-{name}", 0]) for name in reversed(names)}
    code = (
        "import sys, json; from trivial_nodes import run; "
        "print(json.dumps(run(json.load(sys.stdin)).nodes('start')))"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps(document),
            env={"PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(seen) == 1
    assert json.loads(seen.pop())[:3] == names[:3]


def test_links_to_undeclared_inputs_are_followed() -> None:
    """As in the ecosystem: packs take what they do not declare."""
    types = custom(
        "Collect", lambda context, values: (dict(values),), is_output=True, undeclared="links"
    )
    document = {"1": node("Number", value=4), "2": node("Collect", anything=["1", 0])}
    assert run(document, types=types).result.outputs["2"] == ({"anything": 4},)


def test_a_linked_knob_is_checked_as_a_literal_is() -> None:
    document = {
        "1": node("Number", value=50),
        "2": node("Knobs", count=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    with pytest.raises(
        InputError,
        match=r"node 2 \(Knobs\): input count: got 50, expected a whole number from 1 to 10",
    ):
        run(document).result.raise_failures()
    document["1"] = node("Number", value=5)
    assert run(document).result.outputs["3"] == (5,)


def test_a_single_output_may_be_a_tuple() -> None:
    """Conditioning is one: it must not be taken for several outputs."""
    types = custom("Pair", lambda context, values: ((1, 2),))
    assert run({"1": node("Pair"), "2": node("Save", value=["1", 0])}, types=types).result.outputs[
        "2"
    ] == ((1, 2),)


# The cache.


def test_nothing_runs_twice_and_only_what_changed_runs_again() -> None:
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
    assert third.why("5") == "input b is linked elsewhere"
    assert (
        run({**SUM, "9": node("Echo", value=1)}, cache).why("9") == "the type changed from Number"
    )
    uncached = ResultCache("none")
    run(SUM, uncached)
    assert run(SUM, uncached).why("9") == "its result was not kept (cache policy none)"


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
    assert ran.why("1") == "what it reads has changed"


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


def test_a_value_that_nobody_can_compare_is_passed_but_not_cached() -> None:
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
    """Under each policy a node that several read runs once in a run; `lru:2` keeps the last two
    results of four.
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


def test_values_are_let_go_when_nobody_reads_them_any_more() -> None:
    """Under a policy that keeps nothing; what a lazy node may still ask for is kept, and so is what
    a target gives.
    """
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


def test_an_asynchronous_node_where_a_loop_runs_already_says_what_to_do() -> None:
    class Later(Node, category="test", output=True):
        async def run(self) -> Anything:
            return 1

    types = Registry({"Later": Later.describe()})

    async def main() -> Any:
        return run({"1": node("Later")}, types=types).result.failures

    (error,) = asyncio.run(main()).values()
    assert (
        str(error)
        == "node 1 (Later): is asynchronous, and this thread runs an event loop already; run the "
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


# Expansion.


def expanding(graph: Graph, *outputs: Any) -> Registry:
    return custom(
        "Expand",
        lambda context, values: Expansion(graph, outputs),
        (Input("value", ANY, required=False, knob=False),),
        outputs=len(outputs),
    )


def test_an_expansion_takes_the_place_of_its_node() -> None:
    inner = Graph(
        {"n": NodeCall("Number", {"value": 5}), "sum": NodeCall("Add", {"a": Link("n", 0), "b": 1})}
    )
    document = {
        "1": node("Expand"),
        "2": node("Save", value=["1", 0]),
        "3": node("Save", value=["1", 1]),
        "4": node("Save", value=["1", 2]),
    }
    ran = run(document, types=expanding(inner, Link("sum", 0), Link("n", 0), "a value"))
    assert ran.result.outputs == {"2": (6,), "3": (5,), "4": ("a value",)}
    assert ran.nodes("start")[:3] == ["1", "1.n", "1.sum"]
    assert {event.display for event in ran.events if event.node == "1.sum"} == {"1"}


def test_ids_of_an_expansion_never_meet_others() -> None:
    inner = Graph({"n": NodeCall("Number", {"value": 5})})
    document = {
        "1": node("Expand"),
        "1.n": node("Number", value=8),
        "2": node("Save", value=["1", 0]),
        "3": node("Save", value=["1.n", 0]),
    }
    assert run(document, types=expanding(inner, Link("n", 0))).result.outputs == {
        "2": (5,),
        "3": (8,),
    }


def test_an_expansion_may_read_nodes_outside_of_it() -> None:
    inner = Graph({"sum": NodeCall("Add", {"a": Link("7", 0), "b": 1})})
    document = {
        "7": node("Number", value=3),
        "1": node("Expand"),
        "2": node("Save", value=["1", 0]),
    }
    assert run(document, types=expanding(inner, Link("sum", 0))).result.outputs["2"] == (4,)


def test_an_expansion_without_end_fails_and_leaves_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("katz_graph.executor.graph.expansion.MOST", 100)
    inner = Graph({"again": NodeCall("Expand", {})})
    document = {
        "1": node("Expand"),
        "2": node("Save", value=["1", 0]),
        "3": node("Number", value=1),
        "4": node("Save", value=["3", 0]),
    }
    result = run(document, types=expanding(inner, Link("again", 0))).result
    (error,) = result.failures.values()
    assert str(error).startswith(
        "node 1 (Expand), in it node 1.again#100 (Expand): expands on and on: "
    )
    assert result.outputs == {"4": (1,)} and result.refused == ("2",)


def test_output_nodes_of_an_expansion_run() -> None:
    context = RecordingContext()
    inner = Graph(
        {"n": NodeCall("Number", {"value": 5}), "save": NodeCall("Save", {"value": Link("n", 0)})}
    )
    run(
        {"1": node("Expand"), "2": node("Save", value=["1", 0])},
        types=expanding(inner, 1),
        context=context,
    )
    assert context.said == ["5", "1"]


def test_nested_expansion_is_cached_as_a_whole_and_in_parts() -> None:
    def document(count: int, start: int = 10) -> dict[str, Any]:
        return {
            "1": node("Number", value=start),
            "2": node("Countdown", count=count, value=["1", 0]),
            "3": node("Save", value=["2", 0]),
        }

    cache = ResultCache()
    assert run(document(5), cache).result.outputs["3"] == (15,)
    assert run(document(5), cache).nodes("start") == []
    # the parts were kept although they were not asked for
    assert run(document(5), cache).nodes("start") == []
    other = run(document(4, start=11), cache)
    assert other.result.outputs["3"] == (15,)
    assert other.nodes("start") == ["1", "2", "3"] and other.nodes("cached") == ["2.again"]


def test_what_nodes_inside_an_expansion_show_is_given_again_from_the_cache() -> None:
    """Also where the expansion was made inside another one, and beside those that run."""
    show = custom(
        "Show",
        lambda context, values: WithUi((), {"text": [str(values["n"])]}),
        (COUNT,),
        outputs=0,
        is_output=True,
    )

    def down(context: Context, values: Mapping[str, Any]) -> Any:
        rounds = values["n"]
        if not rounds:
            return (0,)
        nodes = {
            "show": NodeCall("Show", {"n": rounds}),
            "next": NodeCall("Down", {"n": rounds - 1}),
        }
        return Expansion(Graph(nodes), (Link("next", 0),), {"next": "1"})

    types = Registry({**custom("Down", down, (COUNT,)), "Show": show["Show"]})
    cache = ResultCache()

    def shown(rounds: int, b: int) -> tuple[set[str], set[str], list[str]]:
        ran = run(
            {
                "1": node("Down", n=rounds),
                "2": node("Add", a=["1", 0], b=b),
                "3": node("Save", value=["2", 0]),
            },
            cache,
            types,
        )
        told = [
            event.ui["text"][0]
            for event in ran.events
            if isinstance(event, NodeDone) and event.ui and event.display == "1"
        ]
        return (
            {ui["text"][0] for ui in ran.result.ui.values()},
            set(ran.nodes("start")),
            sorted(told),
        )

    assert shown(3, b=0)[0] == {"3", "2", "1"}
    assert shown(3, b=1) == ({"3", "2", "1"}, {"2", "3"}, ["1", "2", "3"])
    texts, started, told = shown(4, b=1)
    assert (
        texts == {"4", "3", "2", "1"}
        and told == ["1", "2", "3", "4"]
        and started == {"1", "1.show", "2", "3"}
    )


def test_a_result_whose_files_are_gone_is_made_again(tmp_path: Path) -> None:
    """Also inside an expansion; what is upstream of it is still there, and a file that never was is
    not waited for.
    """

    def write(context: Context, values: Mapping[str, Any]) -> Any:
        file = tmp_path / "temp" / "deep" / f"{values['n']}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("written")
        told = {"filename": file.name, "subfolder": "deep", "type": "temp"}
        return WithUi(
            (), {"files": [told, {**told, "filename": "never.txt"}, {"type": "temp"}, "words"]}
        )

    def inside(context: Context, values: Mapping[str, Any]) -> Any:
        return Expansion(
            Graph({"write": NodeCall("Write", {"n": values["n"]}), "one": NodeCall("Number", {})}),
            (Link("one", 0),),
        )

    kinds = (
        custom("Write", write, (COUNT,), outputs=0, is_output=True),
        custom("Inside", inside, (COUNT,), is_output=True),
    )
    types = Registry({name: kind for registry in kinds for name, kind in registry.items()})
    document = {
        "1": node("Number", value=1),
        "2": node("Write", n=["1", 0]),
        "3": node("Inside", n=2),
    }
    cache, context = ResultCache(), RecordingContext(output_directory=tmp_path)
    assert set(run(document, cache, types, context=context).nodes("start")) == {
        "1",
        "2",
        "3",
        "3.write",
        "3.one",
    }
    assert run(document, cache, types, context=context).nodes("start") == []
    (tmp_path / "temp" / "deep" / "1.txt").unlink()
    again = run(document, cache, types, context=context)
    assert again.nodes("start") == ["2"] and (tmp_path / "temp" / "deep" / "1.txt").is_file()
    assert [
        event.why for event in again.events if isinstance(event, NodeDone) and not event.cached
    ] == ["1.txt, which it wrote, is gone"]
    (tmp_path / "temp" / "deep" / "2.txt").unlink()
    assert set(run(document, cache, types, context=context).nodes("start")) == {"3", "3.write"}
    assert (tmp_path / "temp" / "deep" / "2.txt").is_file()
    assert run(document, cache, types, context=context).nodes("start") == []


@pytest.mark.parametrize(
    ("inner", "output", "path"),
    [
        (
            {
                "a": NodeCall("Echo", {"value": Link("b", 0)}),
                "b": NodeCall("Echo", {"value": Link("a", 0)}),
            },
            Link("a", 0),
            "1.a (Echo) -> 1.b (Echo) -> 1.a",
        ),
        ({"a": NodeCall("Echo", {"value": Link("1", 0)})}, Link("a", 0), "1.a (Echo)"),
        ({"a": NodeCall("Echo", {"value": Link("2", 0)})}, Link("a", 0), "2 (Echo)"),
        ({}, Link("1", 0), "1 (Expand) -> 1 (Expand)"),
    ],
)
def test_a_cycle_made_by_expansion_is_named(
    inner: dict[str, NodeCall], output: Link, path: str
) -> None:
    document = {
        "1": node("Expand"),
        "2": node("Echo", value=["1", 0]),
        "3": node("Save", value=["2", 0]),
        "4": node("Save", value=1),
    }
    result = run(document, types=expanding(Graph(inner), output)).result
    assert result.outputs == {"4": (1,)} and result.refused == ("3",)
    (message,) = map(str, result.failures.values())
    assert "stands in a cycle" in message and path in message


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (
            {"a": NodeCall("Nowhere", {})},
            "in it node 1.a (Nowhere): there is no node type of this name",
        ),
        (
            {"a": NodeCall("Echo", {"value": Link("gone", 0)})},
            'links to node "gone", which does not exist',
        ),
        ({"a": NodeCall("Echo", {})}, "in it node 1.a (Echo): input value is missing"),
        (
            {"a": NodeCall("Number", {"value": 10**6})},
            "value: got 1000000; Input should be less than or equal to 10000",
        ),
    ],
)
def test_bad_expansions_are_named_by_the_node_of_the_file(
    inner: dict[str, NodeCall], expected: str
) -> None:
    result = run(
        {"1": node("Expand"), "2": node("Save", value=["1", 0])},
        types=expanding(Graph(inner), Link("a", 0)),
    ).result
    with pytest.raises(InputError) as caught:
        result.raise_failures()
    assert "node 1 (Expand)" in str(caught.value) and expected in str(caught.value)


# Step regions.


@dataclass
class FakeRegions:
    """Stands in for the planner: a region is the named nodes, its inputs what they read from
    outside.
    """

    bound: list[Mapping[Link, Any]] = field(default_factory=list)

    def region_nodes(self, graph: Graph, end: str) -> RegionNodes:
        prefix = end.removesuffix("end")
        members = tuple(
            name
            for name in graph.nodes
            if name.startswith(prefix)
            and graph.nodes[name].type in ("Begin", "Middle", "End", "Choose")
        )
        entering = tuple(
            link
            for name in members
            for _, link in graph.nodes[name].links()
            if link.node not in members
        )
        return RegionNodes(members[0], end, members, entering)

    def bind_region(
        self,
        graph: Graph,
        registry: Any,
        nodes: RegionNodes,
        values: Mapping[Link, Any],
        name: str = "",
        shown_as: Mapping[str, str] | None = None,
    ) -> Any:
        self.bound.append(values)
        return sorted(values.values())


class FakeEngine:
    def __init__(self) -> None:
        self.sampled: list[Any] = []

    def sample(self, region: Any, context: Any) -> Any:
        self.sampled.append(region)
        return f"latent of {region}", f"denoised of {region}"


def region_types() -> Registry:
    def never(context: Any, values: Any) -> Any:
        raise AssertionError("a node inside a region ran on its own")

    port = tuple(Input(name, ANY, required=False, knob=False) for name in ("value", "step"))
    kinds = {
        name: NodeType(
            name,
            name,
            "",
            "",
            {p.name: p for p in port},
            (Output("x", ANY), Output("y", ANY)),
            False,
            never,
            stage=stage,
        )
        for name, stage in (("Begin", "step_begin"), ("Middle", "unet_mid"), ("End", "step_end"))
    }
    return Registry({**TYPES, **kinds})


REGION = {
    "model": node("Number", value=1),
    "scale": node("Number", value=2),
    "begin": node("Begin", value=["model", 0]),
    "middle": node("Middle", step=["begin", 0], value=["scale", 0]),
    "end": node("End", step=["begin", 0], value=["middle", 0]),
    "save": node("Save", value=["end", 0]),
}


def test_a_region_runs_as_one_unit_on_the_values_that_enter_it() -> None:
    engine = FakeEngine()
    cache = ResultCache()
    ran = run(
        REGION, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
    )
    assert ran.result.outputs["save"] == ("latent of [1, 2]",)
    assert ran.nodes("start") == ["model", "scale", "end", "save"]
    again = run(
        REGION, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
    )
    assert again.nodes("start") == [] and len(engine.sampled) == 1
    changed = {**REGION, "middle": node("Middle", step=["begin", 0], value=["model", 0])}
    run(changed, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions())
    assert len(engine.sampled) == 2


def test_a_switch_inside_a_region_leaves_it_cacheable() -> None:
    document = {
        **REGION,
        "middle": node(
            "Choose", condition=["begin", 0], on_true=["begin", 0], on_false=["scale", 0]
        ),
    }
    engine, cache = FakeEngine(), ResultCache()
    for _ in range(2):
        ran = run(
            document, cache, region_types(), context=RecordingContext(engine), regions=FakeRegions()
        )
    assert ran.nodes("start") == [] and len(engine.sampled) == 1


def test_a_region_made_by_expansion() -> None:
    inner = {
        "begin": NodeCall("Begin", {"value": 7}),
        "mid": NodeCall("Middle", {"step": Link("begin", 0), "value": Link("scale", 0)}),
        "end": NodeCall("End", {"step": Link("begin", 0), "value": Link("mid", 0)}),
    }
    expand = expanding(Graph(inner), Link("end", 0))["Expand"]
    types = Registry({**region_types(), "Expand": expand})
    document = {
        "scale": node("Number", value=2),
        "1": node("Expand"),
        "save": node("Save", value=["1", 0]),
    }
    ran = run(document, None, types, context=RecordingContext(FakeEngine()), regions=FakeRegions())
    assert ran.result.outputs["save"] == ("latent of [2]",)


def test_a_sampler_expands_to_a_region_of_the_planner() -> None:
    """The built-in KSampler with the real planner: the engine gets the bound region, and a new
    prompt or strength makes another one.
    """
    types, _ = load_registry()
    part = Component("folder", ())
    encoder = TextEncoderRecipe(part, part)
    model, _, _ = pipeline_recipes(MINI / "pipeline")
    engine = FakeEngine()
    cache = ResultCache()

    def sample(text: str, guidance: float = 8.0) -> Ran:
        conditioning = (ConditioningEntry(Prompt(ClipRecipe((encoder,)), text)),)
        inputs = {
            "model": model,
            "positive": conditioning,
            "negative": conditioning,
            "latent_image": {"samples": numpy.zeros((1, 4, 16, 16))},
            "cfg": guidance,
        }
        graph = Graph(
            {
                "k": NodeCall("KSampler", inputs, "my sampler"),
                "save": NodeCall("Save", {"value": Link("k", 0)}),
            }
        )
        return run(graph, cache, Registry({**types, **TYPES}), context=RecordingContext(engine))

    assert sample("a red star").result.failures == {}
    assert [operation.type for operation in engine.sampled[0].operations].count("UNetMid") == 2
    assert engine.sampled[0].begin.inputs["steps"] == 20
    assert sample("a red star").nodes("start") == []
    sample("a blue star")
    sample("a blue star", guidance=1.0)
    assert len(engine.sampled) == 3
    assert [operation.type for operation in engine.sampled[2].operations].count("UNetMid") == 1


# Failures.


def failing(kind: str = "ValueError", title: str = "") -> dict[str, Any]:
    bad = {**node("Fail", error=kind, value=["1", 0]), "_meta": {"title": title}}
    return {
        "1": node("Number", value=1),
        "2": bad,
        "3": node("Echo", value=["2", 0]),
        "4": node("Save", value=["3", 0]),
        "5": node("Save", value=["1", 0]),
    }


def test_a_failing_node_leaves_independent_outputs_alone() -> None:
    result = run(failing()).result
    assert result.outputs == {"5": (1,)} and result.refused == ("4",)
    with pytest.raises(RunError) as caught:
        result.raise_failures()
    assert caught.value.exit_code == 1
    assert str(caught.value).split("\n") == [
        f"node 2 (Fail): ValueError: shapes do not fit (trivial_nodes.py:{raise_line()})",
        "some outputs were refused: node 4",
    ]
    assert isinstance(caught.value.__cause__.__cause__, ValueError)  # type: ignore[union-attr]


def raise_line() -> int:
    source = (Path(__file__).parent / "trivial_nodes.py").read_text().split("\n")
    return source.index("        raise errors[self.error]") + 1


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "MemoryError",
            'node 2 (Fail "upscale"): out of memory; take a smaller picture or batch, tiles, a '
            "number format",
        ),
        (
            "full disk",
            'node 2 (Fail "upscale"): the disk is full (/out/picture.png); free some space or '
            "choose another --output",
        ),
        ("exit", 'node 2 (Fail "upscale"): SystemExit: 3'),
    ],
)
def test_failures_are_one_clear_line(kind: str, expected: str) -> None:
    (error,) = run(failing(kind, "upscale")).result.failures.values()
    assert str(error).startswith(expected) and "\n" not in str(error)


def test_foreign_code_may_raise_anything() -> None:
    class Odd(BaseException):
        pass

    def leave(context: Any, values: Any) -> Any:
        raise Odd("gone")

    (error,) = run(
        {"1": node("Leave"), "2": node("Save", value=["1", 0])}, types=custom("Leave", leave)
    ).result.failures.values()
    assert str(error).startswith("node 1 (Leave): Odd: gone")


def test_out_of_device_memory() -> None:
    torch = pytest.importorskip("torch")

    def allocate(context: Any, values: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\n(GPU 0 ...)")

    (error,) = run(
        {"1": node("Big"), "2": node("Save", value=["1", 0])}, types=custom("Big", allocate)
    ).result.failures.values()
    assert isinstance(error, OutOfMemory)
    assert str(error) == (
        "node 1 (Big): out of memory: 21.47 GB more could not be had; "
        "take a smaller picture or batch, tiles, a number format of fewer bytes (--dtype) or a "
        "smaller model"
    )


def test_wrong_input_found_while_running_is_wrong_input() -> None:
    def refuse(context: Any, values: Any) -> Any:
        raise InputError("a.safetensors: the header lies about its size")

    types = custom("Load", refuse)
    with pytest.raises(InputError) as caught:
        run(
            {"1": node("Load"), "2": node("Save", value=["1", 0])}, types=types
        ).result.raise_failures()
    assert str(caught.value) == "node 1 (Load): a.safetensors: the header lies about its size"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("result", "expected"),
    [(None, "gave a NoneType, expected 1 outputs"), ((1, 2), "gave 2 outputs, expected 1 outputs")],
)
def test_a_node_that_gives_the_wrong_number_of_outputs(result: Any, expected: str) -> None:
    (error,) = run(
        {"1": node("Odd"), "2": node("Save", value=["1", 0])},
        types=custom("Odd", lambda context, values: result),
    ).result.failures.values()
    assert expected in str(error)


def test_each_failure_is_told_once_and_named_in_events() -> None:
    ran = run({**failing(), "6": node("Save", value=["2", 0])})
    assert ran.nodes("failed") == ["2"]
    assert list(ran.result.failures) == ["2"]
    assert ran.result.refused == ("4", "6")


def test_what_failed_runs_again() -> None:
    cache = ResultCache()
    run(failing(), cache)
    again = run(failing(), cache)
    assert again.nodes("start") == ["2"] and again.nodes("failed") == ["2"]


def test_cancellation_between_nodes_keeps_what_is_done() -> None:
    cache = ResultCache()
    with pytest.raises(Cancelled):
        run(SUM, cache, context=RecordingContext(cancel_after=2))
    assert run(SUM, cache).nodes("start") == ["5", "4"]


def test_ctrl_c_is_a_cancellation() -> None:
    with pytest.raises(Cancelled) as caught:
        run(failing("KeyboardInterrupt"))
    assert caught.value.exit_code == 130
