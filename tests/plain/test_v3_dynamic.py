"""V3 nodes have dynamic inputs: growing groups, choices that add inputs, inputs that share a type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_packs import forgetting_shims
from test_v3 import loaded, outputs, ran, simple
from trivial_nodes import TYPES, node

from katz_graph.checks.validate import validate
from katz_graph.formats.api import from_api
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.object_info_write import node_info
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.signature import signatures
from katz_graph.formats.ui_write import to_ui
from katz_graph.formats.workflow import Workflow
from katz_graph.packs import Registry

GROWS = simple(
    "Grows",
    'io.Autogrow.Input("many", template=io.Autogrow.TemplatePrefix(io.Int.Input("x"), prefix="x", '
    'min=1, max=4)), io.Int.Input("own", default=3)',
    "io.String.Output()",
    'return io.NodeOutput(repr((given["many"], given["own"])))',
)
NAMED = simple(
    "Named",
    'io.Autogrow.Input("some", optional=True, template=io.Autogrow.TemplateNames(io.Image.Input('
    '"x", optional=True), names=["left", "right"], min=0))',
    "io.String.Output()",
    'return io.NodeOutput(repr(given["some"]))',
)
CHOOSES = simple(
    "Chooses",
    'io.DynamicCombo.Input("mode", options=['
    'io.DynamicCombo.Option("scale", [io.Float.Input("by", default=2.0, min=0.5)]), '
    'io.DynamicCombo.Option("fill", [io.Int.Input("width"), io.DynamicCombo.Input("edge", options=['
    'io.DynamicCombo.Option("hard", []), io.DynamicCombo.Option("soft", [io.Int.Input("blur", '
    "default=4)])])]), "
    'io.DynamicCombo.Option("join", [io.Autogrow.Input("more", template='
    'io.Autogrow.TemplatePrefix(io.String.Input("t"), prefix="t", min=1, max=3)), io.Mask.Input("mask", optional=True)])])',
    "io.String.Output()",
    'return io.NodeOutput(repr(given["mode"]))',
)
MATCHES = """
class Matches(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        one = io.MatchType.Template("one", allowed_types=[io.Image, io.Mask])
        any_type = io.MatchType.Template("any")
        return io.Schema(
            node_id="Matches",
            inputs=[
                io.MatchType.Input("picture", template=one, optional=True),
                io.MatchType.Input("value", template=any_type, lazy=True),
            ],
            outputs=[io.MatchType.Output(template=any_type, display_name="same"), io.MatchType.Output(one, id="p")],
        )

    @classmethod
    def execute(cls, value, picture=None):
        return io.NodeOutput(value, picture)
"""
LAZY = simple(
    "Switches",
    'io.Int.Input("select", default=0), io.Autogrow.Input("inputs", template='
    'io.Autogrow.TemplatePrefix(io.MatchType.Input("v", template=io.MatchType.Template("t"), '
    'lazy=True), prefix="input_", min=1, max=50))',
    "io.AnyType.Output()",
    'return io.NodeOutput(given["inputs"][f"input_{given[\'select\']}"])',
    methods="""
    @classmethod
    def check_lazy_status(cls, select, inputs):
        value, name = inputs[f"input_{select}"]
        return [name] if value is None else []
""",
)
CHECKS = simple(
    "Checks",
    'io.DynamicCombo.Input("mode", options=[io.DynamicCombo.Option("a", [io.Int.Input("x", '
    'default=1)]), io.DynamicCombo.Option("b", [])]), io.Int.Input("own", default=1, max=5)',
    "io.String.Output()",
    methods="""
    @classmethod
    def validate_inputs(cls, mode):
        return True if mode.get("x", 0) < 5 else f"x is {mode['x']} in mode {mode['mode']}"
""",
)


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


def problems(registry: Registry, name: str, **inputs: Any) -> list[str]:
    document = {"1": node(name, **inputs), "2": node("Save", value=["1", 0])}
    return [str(one) for one in validate(from_api(document), Registry({**registry, **TYPES}))]


def said(registry: Registry, name: str, **inputs: Any) -> str:
    """Returns the inputs that the node printed."""
    document = {
        "1": node(name, **inputs),
        "2": node("Save", value=["1", 0]),
        "9": node("Echo", value="said"),
    }
    (text,) = outputs(ran(registry, document), "2")
    return str(text)


def test_a_group_that_grows_is_an_object(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, GROWS, "Grows")
    assert bad == []
    document = {
        "0": node("Number", value=7),
        "1": node("Grows", **{"many.x0": ["0", 0], "many.x2": ["0", 0], "own": 3}),
        "2": node("Save", value=["1", 0]),
    }
    assert outputs(ran(registry, document), "2") == ("({'x0': 7, 'x2': 7}, 3)",)
    assert any("many.x0" in line for line in problems(registry, "Grows", own=3))  # one is required
    kind = registry["Grows"]
    assert [port.required for port in kind.inputs.values()] == [True, False, False, False, True]


def test_a_group_of_names_may_be_empty(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, NAMED, "Named")
    assert bad == [] and said(registry, "Named") == "{}"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mode": "scale", "mode.by": 3.0}, {"mode": "scale", "by": 3.0}),
        ({"mode": "scale"}, {"mode": "scale", "by": 2.0}),
        (  # inputs of another choice are dropped
            {"mode": "scale", "mode.by": 1.0, "mode.width": 5},
            {"mode": "scale", "by": 1.0},
        ),
        (
            {"mode": "fill", "mode.width": 5, "mode.edge": "soft", "mode.edge.blur": 2},
            {"mode": "fill", "width": 5, "edge": {"edge": "soft", "blur": 2}},
        ),
        (
            {"mode": "fill", "mode.width": 5, "mode.edge": "hard"},
            {"mode": "fill", "width": 5, "edge": {"edge": "hard"}},
        ),
        (
            {"mode": "join", "mode.more.t0": ["9", 0]},
            {"mode": "join", "more": {"t0": "said"}, "mask": None},
        ),
    ],
)
def test_a_choice_is_an_object_with_what_it_brings(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    registry, bad = loaded(tmp_path, CHOOSES, "Chooses")
    assert bad == [] and said(registry, "Chooses", **given) == repr(expected)


OTHERS = simple(
    "Others",
    'io.DynamicCombo.Input("m", options=['
    'io.DynamicCombo.Option("a", [io.Int.Input("x", max=10), io.Combo.Input("res", options=["1K"])]), '
    'io.DynamicCombo.Option("b", [io.Int.Input("w", optional=True), io.Float.Input("x", max=60), '
    'io.Combo.Input("res", options=["4K", "8K"])]), '
    'io.DynamicCombo.Option("c", [])])',
    "io.String.Output()",
    'return io.NodeOutput(repr(given["m"]))',
)


def test_values_of_a_choice_declare_one_name_differently(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, OTHERS, "Others")
    assert bad == []
    wanted = {"m": "b", "m.x": 55.5, "m.res": "8K", "m.w": 3}
    assert said(registry, "Others", **wanted) == repr({"m": "b", "w": 3, "x": 55.5, "res": "8K"})
    assert said(registry, "Others", m="c") == repr({"m": "c"})
    assert any("m.res" in line for line in problems(registry, "Others", **wanted | {"m.res": "2K"}))
    # a file has the widgets of the chosen option, required ones first
    (slot,) = signatures(registry)("Others").widgets  # type: ignore[union-attr]
    assert [one.name for one in slot.options["a"]] == ["m.x", "m.res"]
    assert [one.name for one in slot.options["b"]] == ["m.x", "m.res", "m.w"]
    options = node_info(registry["Others"])["input"]["required"]["m"][1]["options"]
    assert options[1]["inputs"]["required"]["res"][0] == ["4K", "8K"]
    assert options[0]["inputs"]["required"]["x"][1]["max"] == 10


def test_inputs_of_a_choice_are_checked(tmp_path: Path) -> None:
    registry, _ = loaded(tmp_path, CHOOSES, "Chooses")
    assert any("mode" in line for line in problems(registry, "Chooses", mode="other"))
    assert any(
        "mode.by" in line
        for line in problems(registry, "Chooses", **{"mode": "scale", "mode.by": 0})
    )
    (line,) = problems(registry, "Chooses", mode="fill")
    assert "mode.width is missing" in line
    (line,) = problems(registry, "Chooses", mode="join")
    assert "mode.more.t0 is missing" in line


def test_inputs_of_one_type_take_the_allowed_ones(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, MATCHES, "Matches")
    assert bad == []
    kind = registry["Matches"]
    assert {name: port.socket for name, port in kind.inputs.items()} == {
        "value": "*",
        "picture": "IMAGE,MASK",
    }
    assert [(one.name, one.socket) for one in kind.outputs] == [("same", "*"), ("p", "IMAGE,MASK")]


def test_a_lazy_group_names_the_one_that_it_wants(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, LAZY, "Switches")
    assert bad == []
    document = {
        "0": node("Fail"),
        "1": node("Number", value=5),
        "2": node(
            "Switches", **{"select": 1, "inputs.input_0": ["0", 0], "inputs.input_1": ["1", 0]}
        ),
        "3": node("Save", value=["2", 0]),
    }
    assert outputs(ran(registry, document), "3") == (5,)


def test_a_node_s_own_check_gets_objects(tmp_path: Path) -> None:
    registry, bad = loaded(tmp_path, CHECKS, "Checks")
    assert bad == []
    assert problems(registry, "Checks", **{"mode": "a", "mode.x": 2, "own": 1}) == []
    (line,) = problems(registry, "Checks", **{"mode": "a", "mode.x": 7, "own": 1})
    assert "x is 7 in mode a" in line
    # other inputs are still checked
    assert any("own" in line for line in problems(registry, "Checks", mode="b", own=99))
    (line,) = problems(registry, "Checks", mode="z", own=1)
    assert "not one of its choices" in line


def test_a_node_of_lists_gets_lists(tmp_path: Path) -> None:
    both = "outputs=[io.String.Output()], "
    source = CHOOSES.replace(both, f"{both}is_input_list=True")
    registry, bad = loaded(tmp_path, source, "Chooses")
    assert bad == []
    assert said(registry, "Chooses", mode="scale") == repr({"mode": ["scale"], "by": [2.0]})


def test_clients_are_notified_of_them_as_by_comfyui(tmp_path: Path) -> None:
    registry, _ = loaded(tmp_path, GROWS + NAMED + CHOOSES, "Grows", "Named", "Chooses")
    grows = node_info(registry["Grows"])["input"]["required"]["many"]
    assert grows == [
        "COMFY_AUTOGROW_V3",
        {
            "template": {
                "input": {"required": {"x0": ["INT", {"forceInput": True}]}},
                "min": 1,
                "prefix": "x",
                "max": 4,
            }
        },
    ]
    named = node_info(registry["Named"])["input"]["optional"]["some"]
    assert named[1]["template"]["names"] == ["left", "right"]
    kind, options = node_info(registry["Chooses"])["input"]["required"]["mode"]
    assert kind == "COMFY_DYNAMICCOMBO_V3"
    scale, fill, join = options["options"]
    assert scale["inputs"]["required"]["by"][0] == "FLOAT"
    assert fill["inputs"]["required"]["edge"][0] == "COMFY_DYNAMICCOMBO_V3"
    assert join["inputs"]["required"]["more"][0] == "COMFY_AUTOGROW_V3"
    assert join["inputs"]["optional"]["mask"][0] == "MASK"
    # our reader restores the same types
    read_back = from_object_info({name: node_info(registry[name]) for name in registry})
    known = signatures(registry)
    for name in registry:
        mine = known(name)
        assert mine is not None
        assert read_back[name].wires == mine.wires
        assert [one.name for one in read_back[name].widgets] == [one.name for one in mine.widgets]


def test_files_show_linked_inputs_and_one_more(tmp_path: Path) -> None:
    registry, _ = loaded(tmp_path, GROWS, "Grows")
    document = {
        "0": node("Number", value=7),
        "1": node("Grows", **{"own": 3, "many.x0": ["0", 0], "many.x2": ["0", 0]}),
    }
    known = signatures(Registry({**registry, **TYPES}))
    drawn = to_ui(Workflow(from_api(document)), known)
    (grows,) = (one for one in drawn["nodes"] if one["id"] == 1)
    assert [one["name"] for one in grows["inputs"]] == ["many.x0", "many.x1", "many.x2"]
    again = parse_workflow(drawn, Registry({**registry, **TYPES}))
    assert again.graph.nodes["1"].inputs == from_api(document).nodes["1"].inputs


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ('io.DynamicSlot.Input(io.Image.Input("p"), inputs=[])', "p (io.DynamicSlot)"),
        (
            'io.Autogrow.Input("g", template=io.Autogrow.TemplatePrefix(io.DynamicCombo.Input("c", '
            'options=[]), prefix="c"))',
            "g (io.Autogrow) of dynamic inputs is not supported",
        ),
    ],
)
def test_nodes_that_cannot_be_unfolded_are_skipped_by_name(
    inputs: str, reason: str, tmp_path: Path
) -> None:
    registry, bad = loaded(tmp_path, simple("Odd", inputs) + simple("Fine"), "Odd", "Fine")
    assert "Fine" in registry and "Odd" not in registry
    assert len(bad) == 1 and "node Odd" in bad[0] and reason in bad[0]
