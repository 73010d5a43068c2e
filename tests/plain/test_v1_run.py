"""V1 nodes receive the right arguments, run over lists, and obey blockers and lazy inputs."""

from __future__ import annotations

from typing import Any

import pytest
from trivial_nodes import RecordingContext, node, run
from v1_classes import ANYTHING, MANY, echo, failure, pack_class, run_v1, saved, types

from katz_graph.executor.graph.lists import Listed
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.object_info_write import node_info
from katz_graph.node.scope import ExecutionBlocker

# Arguments.


def test_undeclared_links_arrive_and_undeclared_literals_do_not() -> None:
    document = {"0": node("Number", value=3), "1": node("Made", extra=["0", 0], other=5)}
    assert saved(document, {"Made": pack_class(echo)}) == {"extra": 3}


def test_inputs_that_claim_to_know_every_name_get_all() -> None:
    class Flexible(dict[str, Any]):
        def __contains__(self, name: object) -> bool:
            return True

        def __getitem__(self, name: str) -> Any:
            return (ANYTHING,)

    document = {"0": node("Number", value=3), "1": node("Made", extra=["0", 0], other=5)}
    assert saved(document, {"Made": pack_class(echo, optional=Flexible())}) == {
        "extra": 3,
        "other": 5,
    }


def test_hidden_inputs() -> None:
    context = RecordingContext(
        metadata={
            "prompt": '{"1": {"class_type": "Made", "inputs": {}}}',
            "workflow": '{"nodes": []}',
        }
    )
    hidden = {
        "me": "UNIQUE_ID",
        "prompt": "PROMPT",
        "graph": "DYNPROMPT",
        "info": "EXTRA_PNGINFO",
        "key": "AUTH_TOKEN_COMFY_ORG",
    }
    document = {"7": node("Made"), "save": node("Save", value=["7", 0])}
    values = run_v1(
        document, {"Made": pack_class(echo, hidden=hidden)}, context=context
    ).result.outputs["save"][0]
    assert values["me"] == "7" and values["key"] is None
    assert values["prompt"] == {"1": {"class_type": "Made", "inputs": {}}} and values["info"] == {
        "workflow": {"nodes": []}
    }
    graph = values["graph"]
    assert (
        graph.has_node("7")
        and not graph.has_node("8")
        and graph.get_original_prompt() == values["prompt"]
    )
    assert graph.get_node("save") == {"class_type": "Save", "inputs": {"value": ["7", 0]}}
    assert graph.get_display_node_id("7") == "7" and graph.get_parent_node_id("7") is None


def test_a_hidden_input_of_an_ordinary_type_is_there_only_if_the_prompt_gives_it() -> None:
    made = {"Made": pack_class(echo, hidden={"start": ("*",), "word": "WORDS"})}
    assert saved({"1": node("Made")}, made) == {}
    assert saved({"1": node("Made", start=3, word="so")}, made) == {"start": 3, "word": "so"}
    assert saved({"0": node("Number", value=4), "1": node("Made", start=["0", 0])}, made) == {
        "start": 4
    }
    assert node_info(types(**made)["Made"])["input"]["hidden"] == {"start": ["*"], "word": "WORDS"}


def test_the_object_of_a_node_stays_between_runs() -> None:
    def count(self: Any, x: int) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return (self.count,)

    classes = {"Made": pack_class(count, {"x": ("INT",)})}
    registry, cache = types(**classes), ResultCache()

    def counted(x: int, name: str = "1") -> Any:
        return run(
            {name: node("Made", x=x), "s": node("Save", value=[name, 0])}, cache, registry
        ).result.outputs["s"][0]

    assert [counted(1), counted(2), counted(3)] == [1, 2, 3]
    assert counted(4, "other") == 1
    assert counted(5) == 1  # the node was absent from the previous graph


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ((3,), 3),
        ([3], 3),
        ({"result": (3,)}, 3),
        ({"ui": {"text": ["x"]}, "result": (3,)}, 3),
    ],
)
def test_forms_of_results(result: Any, expected: Any) -> None:
    assert saved({"1": node("Made")}, {"Made": pack_class(lambda self: result)}) == expected


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ((), "returned a tuple of 0, expected a tuple of 1 (*)"),
        (None, "returned nothing, expected a tuple of 1 (*)"),
        ("text", 'returned "text", expected a tuple of 1 (*)'),
        ({"images": []}, "without any of ui, result, expand"),
        ({"ui": []}, "returned a list of 0 as ui"),
        ({"expand": {"a": 1}, "result": (["a", 0],)}, "expands to a graph whose node a is 1"),
    ],
)
def test_results_that_are_not_as_declared_are_named(result: Any, expected: str) -> None:
    message = failure(lambda self: result)
    assert message.startswith("node 1 (Made): ") and expected in message


@pytest.mark.parametrize("result", [(1, 2, [3]), {"result": (1, 2, 3), "ui": {}}])
def test_values_beyond_the_declared_outputs_are_left_out_and_reported_once(result: Any) -> None:
    context = RecordingContext()
    document = {
        **{name: node("Made", x=number) for number, name in enumerate("ab")},
        "s": node("Save", value=["a", 0]),
    }
    document["t"] = node("Save", value=["b", 0])
    kind = pack_class(lambda self, x: result, {"x": ("INT",)})
    ran = run_v1(document, {"Made": kind}, context=context)
    assert ran.result.outputs == {"s": (1,), "t": (1,)} and not ran.result.failures
    said = [line for line in context.said if "Made" in line]
    assert said and set(said) == {
        "Made: returned 2 values more than its 1 declared outputs; they were left out"
    }


def test_output_nodes_may_return_nothing_or_ui_only() -> None:
    for result in (None, {"ui": {"images": [{"filename": "a.png"}]}}, ()):
        kind = pack_class(lambda self, result=result: result, returns=(), OUTPUT_NODE=True)
        cache = ResultCache()
        first, again = (run_v1({"1": node("Made")}, {"Made": kind}, cache) for _ in range(2))
        assert first.result.outputs == {"1": ()} and again.nodes("cached") == ["1"]
        ui = {"1": result["ui"]} if isinstance(result, dict) else {}
        assert first.result.ui == ui and again.result.ui == ui
        assert again.events[-1].ui == ui.get("1")


# Lists.


TWO = pack_class(lambda self: ([10, 20],), returns=("INT",), OUTPUT_IS_LIST=(True,))
NONE = pack_class(lambda self: ([],), returns=("INT",), OUTPUT_IS_LIST=(True,))
PLUS = pack_class(lambda self, a, b: (a + b,), {"a": ("INT",), "b": ("INT",)}, returns=("INT",))
ALL = pack_class(lambda self, a, b: ((a, b),), {"a": ("INT",), "b": ("INT",)}, INPUT_IS_LIST=True)
LISTS = {"Many": MANY, "Two": TWO, "None": NONE, "Plus": PLUS, "All": ALL}


def listed(first: str, second: str, reader: str) -> Any:
    return saved(
        {"a": node(first), "b": node(second), "1": node(reader, a=["a", 0], b=["b", 0])}, LISTS
    )


def test_a_node_is_run_once_per_element_of_the_longest_list() -> None:
    document = {
        "a": node("Many"),
        "b": node("Two"),
        "1": node("Plus", a=["a", 0], b=["b", 0]),
        "save": node("Save", value=["1", 0]),
    }
    context = RecordingContext()
    ran = run_v1(document, LISTS, context=context)
    assert ran.result.outputs["save"] == (Listed((11, 22, 23)),)
    assert context.said == ["11", "22", "23"]
    assert ran.nodes("start").count("1") == 1


def test_a_node_that_takes_lists_gets_them_whole() -> None:
    assert listed("Many", "Two", "All") == ([1, 2, 3], [10, 20])
    assert saved({"1": node("All", a=1, b=2)}, LISTS) == ([1], [2])
    assert listed("None", "Two", "All") == ([], [10, 20])


def test_a_list_of_one_is_like_a_value() -> None:
    one = pack_class(lambda self: ([5],), OUTPUT_IS_LIST=(True,))
    assert saved({"1": node("One")}, {"One": one}) == 5


def test_nothing_runs_over_an_empty_list_and_a_warning_is_given() -> None:
    context = RecordingContext()
    document = {
        "a": node("None"),
        "1": node("Plus", a=["a", 0], b=1),
        "save": node("Save", value=["1", 0]),
    }
    ran = run_v1(document, LISTS, context=context)
    assert ran.result.outputs["save"] == (Listed(()),)
    assert context.said == [
        "node save (Save): got an empty list for value, so there was nothing to do"
    ]


def test_an_output_that_should_be_a_list_and_is_none_is_named() -> None:
    assert "returned a int for output *, expected a list of values" in failure(
        lambda self: (3,), OUTPUT_IS_LIST=(True,)
    )


# Blockers.


def test_a_blocker_stops_its_readers_and_an_output_reports_its_message() -> None:
    block = pack_class(lambda self: (ExecutionBlocker("no face was found"),))
    document = {
        "1": node("Block"),
        "2": node("Echo", value=["1", 0]),
        "3": node("Save", value=["2", 0]),
        "4": node("Save", value=5),
    }
    ran = run_v1(document, {"Block": block})
    assert ran.nodes("blocked") == ["2"] and ran.result.refused == ("3",)
    assert str(ran.result.failures["3"]) == "node 3 (Save): blocked: no face was found"
    assert ran.result.outputs["4"] == (5,)


def test_a_silent_blocker_is_no_failure() -> None:
    block = pack_class(lambda self: ExecutionBlocker(None), returns=("*", "*"))
    context = RecordingContext()
    ran = run_v1(
        {"1": node("Block"), "2": node("Save", value=["1", 1])}, {"Block": block}, context=context
    )
    assert ran.result.failures == {} and ran.result.blocked == ("2",) and context.said == []
    ran.result.raise_failures()


def test_blocked_elements_of_a_list_are_left_out() -> None:
    some = pack_class(
        lambda self: ([1, ExecutionBlocker(None), 3],), returns=("INT",), OUTPUT_IS_LIST=(True,)
    )
    context = RecordingContext()
    document = {
        "1": node("Some"),
        "2": node("Plus", a=["1", 0], b=1),
        "3": node("Save", value=["2", 0]),
    }
    run_v1(document, {"Some": some, "Plus": PLUS}, context=context)
    assert context.said == ["2", "4"]


# Lazy inputs.


def test_check_lazy_status_is_asked_until_it_wants_nothing_more() -> None:
    asked: list[Any] = []

    class Lazy:
        RETURN_TYPES, FUNCTION = ("*",), "go"

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            lazy = {name: ("*", {"lazy": True}) for name in ("a", "b", "c")}
            return {"required": {"a": lazy.pop("a")}, "optional": lazy}

        def check_lazy_status(self, a: Any, b: Any, c: Any) -> list[str]:
            asked.append((a, b, c))
            return ["a"] if a is None else ["b"] if b is None else []

        def go(self, a: Any, b: Any = 0, c: Any = "unset") -> Any:
            return ((a, b, c),)

    document = {str(n): node("Number", value=n) for n in (4, 5, 6)}
    document["1"] = node("Lazy", a=["4", 0], b=["5", 0], c=["6", 0])
    ran = run_v1({**document, "save": node("Save", value=["1", 0])}, {"Lazy": Lazy})
    assert ran.result.outputs["save"] == ((4, 5, None),)
    assert asked == [(None, None, None), (4, None, None), (4, 5, None)]
    assert "6" not in ran.nodes("start")
