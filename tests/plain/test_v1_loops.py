"""V1 nodes expand to graphs and run loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from trivial_nodes import TYPES, Ran, node, run
from v1_classes import MANY, pack_class, run_v1

from katz_graph.checks.validate import check
from katz_graph.core.errors import InputError
from katz_graph.executor.graph.lists import Listed
from katz_graph.executor.graph.result_store import ResultCache
from katz_graph.formats.api import from_api
from katz_graph.packs import Registry, load_registry
from katz_graph.testing import loop_nodes as loops


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
        "0": node("Number", value=0),
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
        peak: ClassVar[int] = 0

        def __init__(self, number: int) -> None:
            self.number = number
            type(self).alive += 1
            type(self).peak = max(self.peak, self.alive)

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
    assert Tracked.peak <= 4


def test_wrong_inputs_are_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match=r"node sum \(Plus\), b: got 1.5, expected a whole number"):
        run_v1(loop(3, sum=node("Plus", a=["open", 1], b=1.5)), loops.NODE_CLASS_MAPPINGS)


class ForOpen:
    """Expands to LoopOpen. `left`: rounds left; set only by expansions."""

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
    """Expands to a count, a condition, and a closing node, which expands to the body with a lower
    count.
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
def test_a_for_loop_with_a_hidden_count_in_its_opening_node(times: int) -> None:
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
