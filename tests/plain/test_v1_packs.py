"""Packs of the ecosystem's first convention: what they declare, what they return, and how their
nodes run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from trivial_nodes import TYPES, Ran, RecordingContext, node, run

from katz_graph.bench import loops
from katz_graph.checks.validate import check
from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.errors import Cancelled, InputError
from katz_graph.executor.graph.lists import Listed
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.api import from_api
from katz_graph.formats.object_info_write import node_info
from katz_graph.packs import Registry, load_registry
from katz_graph.scope import ExecutionBlocker


class AnyType(str):
    """The usual way to say that an input takes everything."""

    def __ne__(self, other: object) -> bool:
        return False


ANYTHING = AnyType("*")


def pack_class(
    function: Any,
    required: Any = None,
    optional: Any = None,
    hidden: Any = None,
    returns: Any = ("*",),
    **attributes: Any,
) -> type:
    """A node class as packs write them, whose function is `function`."""

    def input_types(cls: type) -> dict[str, Any]:
        return {
            "required": required or {},
            "optional": {} if optional is None else optional,
            "hidden": hidden or {},
        }

    members = {
        "INPUT_TYPES": classmethod(input_types),
        "RETURN_TYPES": returns,
        "FUNCTION": "go",
        "CATEGORY": "test",
        "go": function,
    }
    return type("Made", (), members | attributes)


def types(**classes: type) -> Registry:
    return Registry(
        {**TYPES, **{name: V1Class(name, cls, name).describe() for name, cls in classes.items()}}
    )


def run_v1(
    document: Mapping[str, Any],
    classes: Mapping[str, type],
    cache: ResultCache | None = None,
    **options: Any,
) -> Ran:
    """Validated and run, as a client would have it."""
    registry = types(**classes)
    return run(check(from_api(document), registry).or_raise(), cache, registry, **options)


def saved(document: Mapping[str, Any], classes: Mapping[str, type]) -> Any:
    return run_v1({**document, "save": node("Save", value=["1", 0])}, classes).result.outputs[
        "save"
    ][0]


def problem(document: Mapping[str, Any], classes: Mapping[str, type]) -> str:
    found = check(
        from_api({**document, "save": node("Save", value=["1", 0])}), types(**classes)
    ).errors
    assert len(found) == 1, found
    return str(found[0])


def failure(function: Any, **options: Any) -> str:
    ran = run_v1(
        {"1": node("Made"), "save": node("Save", value=["1", 0])},
        {"Made": pack_class(function, **options)},
    )
    (error,) = ran.result.failures.values()
    return str(error)


# What is declared.


def test_a_class_becomes_a_node_type() -> None:
    class Made:
        RETURN_TYPES = ("IMAGE", ["a", "b"], ANYTHING)
        RETURN_NAMES = ("picture", "mode")
        FUNCTION, CATEGORY, OUTPUT_NODE, DESCRIPTION = "go", "mine/deep", True, "Makes things."
        OUTPUT_IS_LIST = (True, False)
        INPUT_IS_LIST, NOT_IDEMPOTENT, DEPRECATED, EXPERIMENTAL = True, True, True, False

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {
                "required": {
                    "image": ("IMAGE",),
                    "seed": (
                        "INT",
                        {
                            "default": 3,
                            "min": 0,
                            "max": 9,
                            "step": 2,
                            "control_after_generate": True,
                        },
                    ),
                    "mode": (["fast", "slow"],),
                    "style": (
                        "COMBO",
                        {"options": ["x", "y"], "default": "y", "tooltip": "the style"},
                    ),
                    "text": ("STRING", {"multiline": True, "dynamicPrompts": True}),
                },
                "optional": {
                    "any": (ANYTHING,),
                    "number": ("INT,FLOAT", {"lazy": True}),
                    "wire": ("INT", {"forceInput": True}),
                    "file": (["a.png"], {"image_upload": True}),
                },
                "hidden": {"me": "UNIQUE_ID", "prompt": "PROMPT"},
            }

        def go(self) -> None: ...

    kind = V1Class("Made", Made, "Made By Me").describe()
    assert (kind.display_name, kind.category, kind.description) == (
        "Made By Me",
        "mine/deep",
        "Makes things.",
    )
    assert [(output.name, output.socket) for output in kind.outputs] == [
        ("picture", "IMAGE"),
        ("mode", "COMBO"),
        ("*", "*"),
    ]
    assert (
        kind.is_output
        and kind.takes_lists
        and kind.per_node
        and kind.gives_lists == (True, False, False)
    )
    assert kind.hidden == {"me": "UNIQUE_ID", "prompt": "PROMPT"} and kind.about == {
        "deprecated": True
    }
    ports = kind.inputs
    assert [name for name, port in ports.items() if port.required] == [
        "image",
        "seed",
        "mode",
        "style",
        "text",
    ]
    assert [name for name, port in ports.items() if port.knob] == [
        "seed",
        "mode",
        "style",
        "text",
        "file",
    ]
    seed = ports["seed"]
    assert (
        seed.default,
        seed.minimum,
        seed.maximum,
        seed.widget.step,
        seed.widget.control_after_generate,
    ) == (3, 0, 9, 2, True)
    assert (ports["mode"].socket, ports["mode"].choices, ports["mode"].default) == (
        "COMBO",
        ("fast", "slow"),
        "fast",
    )
    assert (ports["style"].choices, ports["style"].default, ports["style"].help) == (
        ("x", "y"),
        "y",
        "the style",
    )
    assert ports["text"].widget.multiline and ports["text"].options["dynamicPrompts"] is True
    assert ports["any"].socket == "*" and ports["number"].lazy and ports["file"].widget.upload


def test_classes_that_fail_are_left_out_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(
        "class Good:\n"
        "    RETURN_TYPES, FUNCTION, CATEGORY = (), 'go', 'x'\n"
        "    @classmethod\n"
        "    def INPUT_TYPES(cls): return {'required': {}}\n"
        "    def go(self): return ()\n"
        "class Scans(Good):\n"
        "    @classmethod\n"
        "    def INPUT_TYPES(cls): raise FileNotFoundError('no such folder: models/x')\n"
        "class NoFunction(Good):\n"
        "    FUNCTION = 'gone'\n"
        "class KSampler(Good): pass\n"
        "NODE_CLASS_MAPPINGS = {'GoodOne': Good, 'Scans': Scans, 'NoFunction': NoFunction, "
        "'KSampler': KSampler}\n"
        "NODE_DISPLAY_NAME_MAPPINGS = {'GoodOne': 'A good one'}\n"
        "NODES = {'not': 'ours'}\n"
    )
    registry, problems = load_registry([tmp_path])
    assert registry["GoodOne"].display_name == "A good one" and registry["GoodOne"].pack == "mixed"
    assert registry["KSampler"].pack == "builtin"
    assert [str(found) for found in problems] == [
        "pack mixed: node Scans: FileNotFoundError: no such folder: models/x; the node "
        "was left out",
        'pack mixed: node NoFunction: FUNCTION is "gone", which is no method of the class; the '
        "node was left out",
        "pack mixed: node KSampler is already there from pack builtin; it was left out",
    ]


def test_scripts_for_the_editor_are_remembered(tmp_path: Path) -> None:
    for name, text, project in (
        ("one", 'WEB_DIRECTORY = "./js"\n', ""),
        ("two", "", '[tool.comfy]\nweb = "js"\n'),
        ("three", "", ""),
    ):
        (tmp_path / name / "js").mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("NODE_CLASS_MAPPINGS = {}\n" + text)
        (tmp_path / name / "pyproject.toml").write_text(project)
    registry, problems = load_registry([tmp_path])
    assert dict(registry.web) == {name: tmp_path / name / "js" for name in ("one", "two")}
    assert problems == []


# Literals and validation.


def echo(self: Any, **values: Any) -> Any:
    return (values,)


@pytest.mark.parametrize(
    ("declared", "came", "taken"),
    [
        (("INT", {}), "5", 5),
        (("FLOAT", {}), 1, 1.0),
        (("STRING", {}), 7, "7"),
        (("BOOLEAN", {}), "false", False),
        (([0.5, 1.0], {}), 1, 1.0),
        (("INT,STRING", {}), "7", "7"),
        (("IMAGE,FLOAT", {}), 5, 5),
        (("MY_WIDGET", {}), {"points": [1, 2]}, {"points": [1, 2]}),
        (("*", {}), {"__value__": [1, 2]}, [1, 2]),
        (("INT", {"forceInput": True}), 4, 4),
        ((["a", "b"], {"multi_select": True}), {"__value__": ["a", "b"]}, ["a", "b"]),
    ],
)
def test_literals_are_converted_where_nothing_is_lost(declared: Any, came: Any, taken: Any) -> None:
    got = saved({"1": node("Made", x=came)}, {"Made": pack_class(echo, {"x": declared})})["x"]
    assert got == taken and type(got) is type(taken)


@pytest.mark.parametrize(
    ("declared", "came", "expected"),
    [
        (("INT", {"min": 1, "max": 3}), 4, "x: got 4, expected a whole number from 1 to 3"),
        (("INT", {}), 3.7, "x: got 3.7, expected a whole number"),
        ((["a", "b"],), "c", 'x: got "c", expected one of "a", "b"'),
        (("IMAGE",), 5, "x: got 5, expected a link to an output of type IMAGE"),
    ],
)
def test_literals_that_do_not_fit_are_named(declared: Any, came: Any, expected: str) -> None:
    assert f"node 1 (Made), {expected}" in problem(
        {"1": node("Made", x=came)}, {"Made": pack_class(echo, {"x": declared})}
    )


def test_choices_that_changed_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files = ["a.png"]

    class Lists:
        RETURN_TYPES, FUNCTION, go = ("*",), "go", echo

        @classmethod
        def INPUT_TYPES(cls) -> dict[str, Any]:
            return {"required": {"file": (list(files),)}}

    registry = types(Lists=Lists)
    monkeypatch.setattr("katz_graph.comfy.v1.inputs.SECONDS", 0.0)
    document = from_api({"1": node("Lists", file="b.png"), "save": node("Save", value=["1", 0])})
    assert len(check(document, registry).errors) == 1
    files.append("b.png")
    assert check(document, registry).errors == ()


def test_validate_inputs_replaces_built_in_checks_of_what_it_names() -> None:
    ranged = {"a": ("INT", {"max": 3}), "b": ("INT", {"max": 3})}

    def one(cls: type, a: int) -> Any:
        return True if a < 100 else f"{a} is too much"

    named = {"Made": pack_class(echo, ranged, VALIDATE_INPUTS=classmethod(one))}
    assert saved({"1": node("Made", a=50, b=1)}, named) == {"a": 50, "b": 1}
    assert problem({"1": node("Made", a=500, b=1)}, named) == "node 1 (Made): 500 is too much"
    assert "b: got 50" in problem({"1": node("Made", a=1, b=50)}, named)
    every = {
        "Made": pack_class(
            echo,
            ranged,
            VALIDATE_INPUTS=classmethod(lambda cls, **values: values["a"] < values["b"]),
        )
    }
    assert saved({"1": node("Made", a=50, b=60)}, every) == {"a": 50, "b": 60}
    assert "does not accept" in problem({"1": node("Made", a=60, b=50)}, every)


def test_validate_inputs_may_ask_which_node_it_is_of() -> None:
    made = pack_class(
        echo,
        {"a": ("INT",)},
        hidden={"me": "UNIQUE_ID"},
        VALIDATE_INPUTS=classmethod(lambda cls, me: f"I am {me}"),
    )
    assert problem({"1": node("Made", a=1)}, {"Made": made}) == "node 1 (Made): I am 1"


def test_validate_inputs_may_be_asynchronous_and_may_fail() -> None:
    async def later(cls: type, a: int) -> Any:
        await asyncio.sleep(0)
        return "no" if a else True

    def broken(cls: type, a: int) -> Any:
        raise KeyError("oops")

    def checking(function: Any) -> dict[str, type]:
        return {"Made": pack_class(echo, {"a": ("INT",)}, VALIDATE_INPUTS=classmethod(function))}

    assert problem({"1": node("Made", a=1)}, checking(later)) == "node 1 (Made): no"
    assert saved({"1": node("Made", a=0)}, checking(later)) == {"a": 0}
    assert "its own check of its inputs failed: KeyError: 'oops'" in problem(
        {"1": node("Made", a=1)}, checking(broken)
    )


def test_validate_inputs_that_takes_input_types_decides_what_may_be_linked() -> None:
    seen = []

    def decide(cls: type, input_types: Any) -> Any:
        seen.append(input_types)
        return "no text, please" if input_types["x"] == "STRING" else True

    classes = {"Made": pack_class(echo, {"x": ("LATENT",)}, VALIDATE_INPUTS=classmethod(decide))}
    assert saved({"0": node("Number", value=3), "1": node("Made", x=["0", 0])}, classes) == {"x": 3}
    assert (
        problem({"0": node("LoadFile", name="x"), "1": node("Made", x=["0", 0])}, classes)
        == "node 1 (Made): no text, please"
    )
    assert {"x": "INT"} in seen


def test_a_union_takes_literals_unconverted_and_links_of_its_members() -> None:
    def one(cls: type, x: Any) -> Any:
        return True if x is None or isinstance(x, float) else f"{type(x).__name__} is no float"

    checked = pack_class(echo, {"x": ("IMAGE, FLOAT",)}, VALIDATE_INPUTS=classmethod(one))
    classes = {"Made": checked, "Half": pack_class(lambda self: (0.5,), returns=("FLOAT",))}
    assert saved({"1": node("Made", x=5.0)}, classes) == {"x": 5.0}
    assert problem({"1": node("Made", x=5)}, classes) == "node 1 (Made): int is no float"
    assert saved({"0": node("Half"), "1": node("Made", x=["0", 0])}, classes) == {"x": 0.5}
    assert "got INT from output 0 (INT) of node 0 (Number), expected IMAGE,FLOAT" in problem(
        {"0": node("Number"), "1": node("Made", x=["0", 0])}, classes
    )


# What runs, and with what.


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
    assert counted(5) == 1  # the node was not in the graph before


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
        ((), "gave a tuple of 0, expected a tuple of 1 (*)"),
        (None, "gave nothing, expected a tuple of 1 (*)"),
        ("text", 'gave "text", expected a tuple of 1 (*)'),
        ({"images": []}, "with neither of ui, result, expand"),
        ({"ui": []}, "gave a list of 0 as ui"),
        ({"expand": {"a": 1}, "result": (["a", 0],)}, "expands to a graph whose node a is 1"),
    ],
)
def test_results_that_are_not_as_declared_are_named(result: Any, expected: str) -> None:
    message = failure(lambda self: result)
    assert message.startswith("node 1 (Made): ") and expected in message


@pytest.mark.parametrize("result", [(1, 2, [3]), {"result": (1, 2, 3), "ui": {}}])
def test_values_beyond_the_declared_outputs_are_left_out_and_that_is_said_once(result: Any) -> None:
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
        "Made: gave 2 more than the 1 outputs that it declares; what is too much was left out"
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


MANY = pack_class(lambda self: ([1, 2, 3],), returns=("INT",), OUTPUT_IS_LIST=(True,))
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


def test_nothing_runs_over_an_empty_list_and_that_is_said() -> None:
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
    assert "gave a int for output *, expected a list of values" in failure(
        lambda self: (3,), OUTPUT_IS_LIST=(True,)
    )


# Blockers.


def test_a_blocker_stops_what_reads_it_and_an_output_reports_its_message() -> None:
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


# The signature.


def changing(is_changed: Any, document: Any = None, **options: Any) -> list[list[str]]:
    """Which nodes start in each of three runs."""
    kind = pack_class(
        lambda self, **values: (1,), {"x": ("INT",)}, IS_CHANGED=is_changed, **options
    )
    cache = ResultCache()
    graph = document or {"1": node("Made", x=1), "save": node("Save", value=["1", 0])}
    return [run_v1(graph, {"Made": kind}, cache).nodes("start") for _ in range(3)]


def test_is_changed_is_part_of_the_signature() -> None:
    state = iter([1, 1, 2])
    assert changing(classmethod(lambda cls, x: next(state))) == [["1", "save"], [], ["1", "save"]]


def test_nan_always_runs_again() -> None:
    assert changing(classmethod(lambda cls, **values: float("nan"))) == [["1", "save"]] * 3
    # the pack forgot to make it a class method
    assert changing(lambda self: float("nan")) == [["1", "save"]] * 3

    async def later(cls: type, **values: Any) -> Any:
        await asyncio.sleep(0)
        return float("nan")

    assert changing(classmethod(later)) == [["1", "save"]] * 3


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.array])
def test_numpys_nan_always_runs_again_and_says_why(kind: Any) -> None:
    made = {
        "Made": pack_class(
            lambda self: (1,), IS_CHANGED=classmethod(lambda cls: kind(float("nan")))
        )
    }
    cache, document = ResultCache(), {"1": node("Made"), "save": node("Save", value=["1", 0])}
    runs = [run_v1(document, made, cache) for _ in range(3)]
    assert [ran.nodes("start") for ran in runs] == [["1", "save"]] * 3
    assert runs[-1].why("1") == "never cached: it asks to run always"


def test_is_changed_that_fails_is_told_and_never_cached() -> None:
    def broken(cls: type, x: int) -> Any:
        raise OSError(2, "No such file or directory", "x.png")

    kind = pack_class(lambda self, x: (1,), {"x": ("INT",)}, IS_CHANGED=classmethod(broken))
    context, cache = RecordingContext(), ResultCache()
    for _ in range(2):
        ran = run_v1(
            {"1": node("Made", x=1), "save": node("Save", value=["1", 0])},
            {"Made": kind},
            cache,
            context=context,
        )
    assert ran.nodes("start") == ["1", "save"]
    assert (
        "node 1 (Made): what it depends on could not be found out (No such file or directory "
        "(x.png)), so it is never" in context.said[0]
    )
    assert ran.why("1") == "never cached: what it depends on could not be found out"
    assert ran.why("save") == "never cached: it reads node 1, which is never cached"


def test_links_are_none_for_is_changed() -> None:
    seen: list[Any] = []
    document = {
        "0": node("Number", value=7),
        "1": node("Made", x=["0", 0]),
        "save": node("Save", value=["1", 0]),
    }
    assert changing(classmethod(lambda cls, x: seen.append(x)), document)[1:] == [[], []]
    assert seen == [None] * 3


@pytest.mark.parametrize("options", [{"NOT_IDEMPOTENT": True}, {"hidden": {"me": "UNIQUE_ID"}}, {}])
def test_equal_nodes_share_a_result_unless_they_say_otherwise(options: dict[str, Any]) -> None:
    kind = pack_class(lambda self, **values: (object(),), **options)
    document = {
        "1": node("Made"),
        "2": node("Made"),
        "3": node("Save", value=["1", 0]),
        "4": node("Save", value=["2", 0]),
    }
    cache = ResultCache()
    outputs = run_v1(document, {"Made": kind}, cache).result.outputs
    assert (outputs["3"] == outputs["4"]) is (not options)
    assert run_v1(document, {"Made": kind}, cache).nodes("start") == []


# Asynchronous nodes.


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

    assert "node 1 (Made): ValueError: shapes do not fit (test_v1_packs.py:" in failure(broken)
    assert "node 1 (Made): SystemExit: 3" in failure(leaves)


def test_nothing_where_a_value_was_declared_is_named_by_the_node_that_needs_it() -> None:
    document = {
        "1": node("Made"),
        "2": node("Add", a=["1", 0], b=1),
        "save": node("Save", value=["2", 0]),
    }
    (error,) = run_v1(document, {"Made": pack_class(lambda self: (None,))}).result.failures.values()
    assert str(error) == "node 2 (Add): input a: the node that it reads gave nothing, expected INT"


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


def test_cancelling_stops_asynchronous_nodes_and_what_they_left_behind() -> None:
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


# Expansion and loops.


def test_an_expansion_as_packs_give_it() -> None:
    def expand(self: Any, x: int) -> Any:
        nodes = {
            "p.1": {"class_type": "Number", "inputs": {"value": x}},
            "p.2": {
                "class_type": "Add",
                "inputs": {"a": ["p.1", 0], "b": 1},
                "override_display_id": "0",
            },
        }
        return {"expand": nodes, "result": (["p.2", 0], "a value"), "ui": {"text": ["expanded"]}}

    kind = pack_class(expand, {"x": ("INT",)}, returns=("INT", "STRING"))
    document = {
        "0": node("Number"),
        "1": node("Made", x=4),
        "2": node("Save", value=["1", 0]),
        "3": node("Save", value=["1", 1]),
    }
    ran = run_v1(document, {"Made": kind})
    assert ran.result.outputs == {"2": (5,), "3": ("a value",)}
    assert ran.result.ui == {"1": {"text": ["expanded"]}}
    assert {event.node: event.display for event in ran.events if event.node.startswith("1.")} == {
        "1.1": "1",
        "1.2": "0",
    }


def test_expansions_over_a_list_give_a_list() -> None:
    def expand(self: Any, x: int) -> Any:
        return {
            "expand": {"n": {"class_type": "Add", "inputs": {"a": x, "b": 1}}},
            "result": (["n", 0],),
        }

    many = {"Many": MANY, "Made": pack_class(expand, {"x": ("INT",)}, returns=("INT",))}
    document = {
        "m": node("Many"),
        "1": node("Made", x=["m", 0]),
        "save": node("Save", value=["1", 0]),
    }
    assert run_v1(document, many).result.outputs["save"] == (Listed((2, 3, 4)),)


def loop(limit: int, **body: Any) -> dict[str, Any]:
    return {
        "start": node("Number", value=0),
        "step": node("Number", value=1),
        "open": node("LoopOpen", value=["start", 0]),
        "sum": node("Plus", a=["open", 1], b=["step", 0]),
        "more": node("Below", a=["sum", 0], limit=limit),
        "close": node("LoopClose", flow=["open", 0], again=["more", 0], value=["sum", 0]),
        "save": node("Save", value=["close", 0]),
        **body,
    }


def test_a_loop_as_packs_build_it() -> None:
    ran = run_v1(loop(300), loops.NODE_CLASS_MAPPINGS, ResultCache("none"))
    assert ran.result.outputs["save"] == (300,)
    assert max(map(len, ran.nodes("start"))) < 20
    assert {event.display for event in ran.events} == {
        "start",
        "step",
        "open",
        "sum",
        "more",
        "close",
        "save",
    }
    assert ran.nodes("start").count("step") == 1


def test_a_loop_is_cached_as_a_whole() -> None:
    cache = ResultCache()
    run_v1(loop(20), loops.NODE_CLASS_MAPPINGS, cache)
    assert run_v1(loop(20), loops.NODE_CLASS_MAPPINGS, cache).nodes("start") == []


def test_values_of_past_rounds_are_let_go() -> None:
    class Tracked:
        alive: ClassVar[int] = 0
        most: ClassVar[int] = 0

        def __init__(self, number: int) -> None:
            self.number = number
            type(self).alive += 1
            type(self).most = max(self.most, self.alive)

        def __del__(self) -> None:
            type(self).alive -= 1

    wrap = pack_class(
        lambda self, a, b: (Tracked(getattr(a, "number", a) + b),), {"a": ("*",), "b": ("INT",)}
    )
    below = pack_class(
        lambda self, a, limit: (a.number < limit,),
        {"a": ("*",), "limit": ("INT",)},
        returns=("BOOLEAN",),
    )
    classes = {**loops.NODE_CLASS_MAPPINGS, "Plus": wrap, "Below": below}
    ran = run_v1(loop(100), classes, ResultCache("none"))
    assert ran.result.outputs["save"][0].number == 100
    assert Tracked.most <= 4


def test_wrong_inputs_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"node sum \(Plus\), b: got 1.5, expected a whole number"):
        run_v1(loop(3, sum=node("Plus", a=["open", 1], b=1.5)), loops.NODE_CLASS_MAPPINGS)


class ForOpen:
    """Expands. `left` counts down; only the closing node's expansions give it."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("FLOW", "INT", "*"), "open", "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"times": ("INT",)},
            "optional": {"value": ("*",)},
            "hidden": {"left": ("*",)},
        }

    def open(self, times: int, value: Any = None, **hidden: Any) -> Any:
        left = hidden.get("left", times)
        return {
            "result": ("stub", left, ["inner", 1]),
            "expand": {"inner": {"class_type": "LoopOpen", "inputs": {"value": value}}},
        }


class ForClose:
    """Expands to a count, a condition, and a closing node that expands again: to the body, with one
    less for its opening node.
    """

    RETURN_TYPES, FUNCTION, CATEGORY = ("*",), "close", "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {
            "required": {"flow": ("FLOW", {"rawLink": True})},
            "optional": {"value": ("*", {"rawLink": True})},
        }

    def close(self, flow: Any, value: Any = None) -> Any:
        nodes = {
            "less": {"class_type": "Plus", "inputs": {"a": [flow[0], 1], "b": -1}},
            "more": {"class_type": "Below", "inputs": {"a": ["negative", 0], "limit": 0}},
            "negative": {"class_type": "Negative", "inputs": {"a": ["less", 0]}},
            "again": {
                "class_type": "Again",
                "inputs": {"flow": flow, "more": ["more", 0], "left": ["less", 0], "value": value},
            },
        }
        return {"result": (["again", 0],), "expand": nodes}


class Again:
    RETURN_TYPES, FUNCTION, CATEGORY = ("*",), "close", "test"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        required = {"flow": ("FLOW", {"rawLink": True}), "more": ("BOOLEAN", {"forceInput": True})}
        return {
            "required": required,
            "optional": {"value": ("*",), "left": ("*",)},
            "hidden": {"graph": "DYNPROMPT", "me": "UNIQUE_ID"},
        }

    def close(
        self, flow: Any, more: bool, graph: Any, me: str, value: Any = None, left: Any = None
    ) -> Any:
        if not more:
            return (value,)
        inside = loops.between(graph, me, flow[0])
        names = {name: "again" if name == me else f"body.{name}" for name in inside}
        nodes = {}
        for name, renamed in names.items():
            original = graph.get_node(name)
            inputs = {key: loops.moved(link, names) for key, link in original["inputs"].items()}
            nodes[renamed] = {
                "class_type": original["class_type"],
                "inputs": inputs,
                "override_display_id": name,
            }
        nodes[names[flow[0]]]["inputs"] |= {"left": left, "value": value}
        return {"result": (["again", 0],), "expand": nodes}


FOR = {
    **loops.NODE_CLASS_MAPPINGS,
    **{cls.__name__: cls for cls in (ForOpen, ForClose, Again)},
    "Negative": pack_class(lambda self, a: (-a,), {"a": ("*",)}, returns=("INT",)),
}


@pytest.mark.parametrize("times", [1, 2, 40])
def test_a_for_loop_whose_opening_node_has_a_hidden_count(times: int) -> None:
    document = {
        "open": node("ForOpen", times=times, value=100),
        "sum": node("Plus", a=["open", 2], b=["open", 1]),
        "close": node("ForClose", flow=["open", 0], value=["sum", 0]),
        "save": node("Save", value=["close", 0]),
    }
    ran = run_v1(document, FOR)
    assert ran.result.outputs.get("save") == (100 + times * (times + 1) // 2,), ran.result.failures
    assert {event.display for event in ran.events} == set(document)


BUILDER = '''
from comfy_execution.graph_utils import ExecutionBlocker, GraphBuilder

class Repeat:
    """Adds one, `times` times, each round by expanding to an addition and to itself."""
    RETURN_TYPES, FUNCTION, CATEGORY = ("INT",), "go", "test"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"value": ("INT", {"forceInput": True}), "times": ("INT",)}, "hidden": {"me": "UNIQUE_ID"}}

    def go(self, value, times, me):
        if times < 0:
            return (ExecutionBlocker("times is below zero"),)
        if times == 0:
            return (value,)
        graph = GraphBuilder()
        add = graph.node("Add", f"{me} add", a=value, b=1)
        again = graph.node("Repeat", me, value=add.out(0), times=times - 1)
        again.set_override_display_id(me)
        return {"result": (again.out(0),), "expand": graph.finalize()}

NODE_CLASS_MAPPINGS = {"Repeat": Repeat}
'''


def test_a_pack_that_builds_its_loop_with_a_graph_builder(tmp_path: Path) -> None:
    (tmp_path / "repeat.py").write_text(BUILDER)
    registry, problems = load_registry([tmp_path])
    assert problems == []
    types = Registry({**registry, **TYPES})

    def repeated(times: int) -> Ran:
        document = {
            "0": node("Number", value=5),
            "1": node("Repeat", value=["0", 0], times=times),
            "2": node("Save", value=["1", 0]),
        }
        return run(check(from_api(document), types).or_raise(), None, types)

    ran = repeated(1000)
    assert ran.result.outputs["2"] == (1005,)
    assert max(map(len, ran.nodes("start"))) < 20 and {event.display for event in ran.events} == {
        "0",
        "1",
        "2",
    }
    assert str(repeated(-1).result.failures["2"]) == "node 2 (Save): blocked: times is below zero"
