"""Nodes expand to graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from trivial_graphs import COUNT, custom, expanding
from trivial_nodes import RecordingContext, node, run

from katz_graph.core.errors import InputError
from katz_graph.core.events import NodeDone
from katz_graph.core.graph import Expansion, Graph, Link, NodeCall
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.node import WithUi
from katz_graph.node.types import Context
from katz_graph.packs import Registry


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
    monkeypatch.setattr("katz_graph.executor.graph.expansion.MAX_EXPANDED_NODES", 100)
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
        "node 1 (Expand), in it node 1.again#100 (Expand): expands without end: "
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
    # inner results were cached without being requested
    assert run(document(5), cache).nodes("start") == []
    other = run(document(4, start=11), cache)
    assert other.result.outputs["3"] == (15,)
    assert other.nodes("start") == ["1", "2", "3"] and other.nodes("cached") == ["2.again"]


def test_displays_inside_an_expansion_are_repeated_from_the_cache() -> None:
    """Nested expansions repeat their displays too, also while other displays run."""
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
        texts = [
            event.ui["text"][0]
            for event in ran.events
            if isinstance(event, NodeDone) and event.ui and event.display == "1"
        ]
        return (
            {ui["text"][0] for ui in ran.result.ui.values()},
            set(ran.nodes("start")),
            sorted(texts),
        )

    assert shown(3, b=0)[0] == {"3", "2", "1"}
    assert shown(3, b=1) == ({"3", "2", "1"}, {"2", "3"}, ["1", "2", "3"])
    texts, started, repeated = shown(4, b=1)
    assert (
        texts == {"4", "3", "2", "1"}
        and repeated == ["1", "2", "3", "4"]
        and started == {"1", "1.show", "2", "3"}
    )


def test_a_result_with_deleted_files_is_computed_again(tmp_path: Path) -> None:
    """This holds inside expansions. Results upstream stay cached; files that never existed are
    ignored.
    """

    def write(context: Context, values: Mapping[str, Any]) -> Any:
        file = tmp_path / "temp" / "deep" / f"{values['n']}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("written")
        stored = {"filename": file.name, "subfolder": "deep", "type": "temp"}
        return WithUi(
            (), {"files": [stored, {**stored, "filename": "never.txt"}, {"type": "temp"}, "words"]}
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
    ] == ["its output file 1.txt was deleted"]
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
    assert "is in a cycle" in message and path in message


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (
            {"a": NodeCall("Nowhere", {})},
            "in it node 1.a (Nowhere): unknown node type",
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
