"""The editor's format is read as the graph that a browser would send, from files as found in
practice.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Literal

import pytest

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link
from katz_graph.formats.object_info import from_object_info
from katz_graph.formats.read import parse_workflow
from katz_graph.formats.workflow import Workflow
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.node.knobs import Seed
from katz_graph.node.wires import Image, Latent, Model
from katz_graph.packs import builtin_types


class Loader(Node):
    name: str = "a"

    def run(self) -> Model:
        raise NotImplementedError


class Sampler(Node):
    seed: Seed = 0
    steps: int = 20
    mode: Literal["normal", "fixed"] = "normal"

    def run(self, model: Model, latent: Latent) -> Latent:
        raise NotImplementedError


class Style(Node, names=("MODEL", "LATENT")):
    strength: float = 1.0

    def run(self, model: Model, latent: Latent) -> tuple[Model, Latent]:
        raise NotImplementedError


class Picture(Node):
    image: Annotated[str, FileChoice("input"), Widget(upload=True)]
    channel: Literal["red", "alpha"] = "red"

    def run(self) -> Image:
        raise NotImplementedError


class Save(Node, output=True):
    def run(self, images: Image) -> None: ...


TYPES = {kind.__name__: kind.describe() for kind in (Loader, Sampler, Style, Picture, Save)}


def node(
    identifier: int | str,
    kind: str,
    inputs: Any = (),
    outputs: Any = (),
    values: Any = None,
    **more: Any,
) -> dict[str, Any]:
    """`inputs` are (name, type, link[, is widget]), `outputs` are (name, type)."""
    ports = [
        {"name": n, "type": t, "link": link} | ({"widget": {"name": n}} if widget else {})
        for n, t, link, *widget in inputs
    ]
    return {
        "id": identifier,
        "type": kind,
        "pos": [10, 20],
        "size": [200, 100],
        "flags": {},
        "order": 0,
        "mode": 0,
        "inputs": ports,
        "outputs": [{"name": n, "type": t, "links": []} for n, t in outputs],
        "properties": {"Node name for S&R": kind},
        "widgets_values": values,
    } | more


def ui(nodes: list[Any], links: Any, **more: Any) -> dict[str, Any]:
    return {
        "last_node_id": 99,
        "last_link_id": 99,
        "nodes": nodes,
        "links": links,
        "groups": [],
        "extra": {},
        "version": 0.4,
    } | more


def read(document: Any, types: Any = TYPES, foreign: Any = None) -> Workflow:
    return parse_workflow(json.loads(json.dumps(document)), types, foreign)


def inputs(
    document: Any, identifier: str, types: Any = TYPES, foreign: Any = None
) -> dict[str, Any]:
    return dict(read(document, types, foreign).graph.nodes[identifier].inputs)


LOADER = node(1, "Loader", outputs=[("MODEL", "MODEL")], values=["sd15"])
MODEL_OUT = [("MODEL", "MODEL")]


def test_seed_is_followed_by_its_control_and_a_choice_of_the_same_word_stays() -> None:
    sampler = node(
        2, "Sampler", [("model", "MODEL", 5)], [("LATENT", "LATENT")], [7, "randomize", 30, "fixed"]
    )
    workflow = read(ui([LOADER, sampler], [[5, 1, 0, 2, 0, "MODEL"]]))
    assert workflow.graph.nodes["2"].inputs == {
        "seed": 7,
        "steps": 30,
        "mode": "fixed",
        "model": Link("1", 0),
    }
    assert workflow.graph.nodes["1"].inputs == {"name": "sd15"}
    assert not workflow.notes


def test_a_seed_without_control_value() -> None:
    assert inputs(ui([node(2, "Sampler", values=[7, 30, "fixed"])], []), "2") == {
        "seed": 7,
        "steps": 30,
        "mode": "fixed",
    }


def test_the_value_of_an_upload_button_is_at_the_end() -> None:
    assert inputs(ui([node(2, "Picture", values=["cat.png", "alpha", "image"])], []), "2") == {
        "image": "cat.png",
        "channel": "alpha",
    }


def test_values_as_an_object() -> None:
    values = {"seed": 7, "control_after_generate": "fixed", "steps": 3, "mode": "fixed"}
    assert inputs(ui([node(2, "Sampler", values=values)], []), "2") == {
        "seed": 7,
        "steps": 3,
        "mode": "fixed",
    }


@pytest.mark.parametrize(
    ("kind", "values", "named", "expected"),
    [
        ("Sampler", [7, "randomize"], None, {"seed": 7, "steps": 20, "mode": "normal"}),
        ("Sampler", [7], None, {"seed": 7, "steps": 20, "mode": "normal"}),
        ("Sampler", None, None, {"seed": 0, "steps": 20, "mode": "normal"}),
        ("Sampler", {"steps": 3}, None, {"seed": 0, "steps": 3, "mode": "normal"}),
        (
            "Sampler",
            [7, "fixed", 3],
            {"seed": 7, "control_after_generate": "fixed", "steps": 3},
            {"seed": 7, "steps": 3, "mode": "normal"},
        ),
        ("Sampler", [7, 3], {"seed": 7, "steps": 3}, {"seed": 7, "steps": 3, "mode": "normal"}),
        ("Picture", ["cat.png", "image"], None, {"image": "cat.png", "channel": "red"}),
        ("Picture", ["cat.png"], None, {"image": "cat.png", "channel": "red"}),
        ("Picture", [], None, {"channel": "red"}),  # the existing files are unknown here
    ],
)
def test_a_widget_that_the_file_is_older_than_has_its_default(
    kind: str, values: Any, named: Any, expected: dict[str, Any]
) -> None:
    more = {} if named is None else {"widgets_values_named": named}
    assert inputs(ui([node(2, kind, values=values, **more)], []), "2") == expected


def test_a_link_goes_before_the_default_of_a_widget_that_the_file_is_older_than() -> None:
    sampler = node(
        2,
        "Sampler",
        [("model", "MODEL", 5), ("steps", "INT", 6, True)],
        [("LATENT", "LATENT")],
        [7, "fixed"],
    )
    counter = node(3, "Counter", outputs=[("INT", "INT")])
    found = inputs(
        ui([LOADER, counter, sampler], [[5, 1, 0, 2, 0, "MODEL"], [6, 3, 0, 2, 1, "INT"]]), "2"
    )
    assert found == {"seed": 7, "steps": Link("3", 0), "mode": "normal", "model": Link("1", 0)}


def test_a_server_description_gives_the_defaults_of_widgets_that_the_file_is_older_than() -> None:
    soft = {"key": "soft", "inputs": {"required": {"blur": ["FLOAT", {"default": 0.5}]}}}
    described = {
        "Foreign": {
            "input": {
                "required": {
                    "seed": ["INT", {"default": 3, "control_after_generate": True}],
                    "file": [["a.png", "b.png"], {"image_upload": True}],
                    "count": ["INT", {"min": 1}],
                    "edge": [
                        "COMFY_DYNAMICCOMBO_V3",
                        {"options": [{"key": "plain", "inputs": {}}, soft], "default": "soft"},
                    ],
                    "tags": ["COMBO", {"options": ["x", "y"], "multi_select": True}],
                    "wired": ["FLOAT", {"forceInput": True, "default": 1.0}],
                },
                "optional": {
                    "note": ["STRING", {"multiline": True}],
                    "flip": ["BOOLEAN", {}],
                    "either": ["FLOAT,IMAGE", {"widgetType": "FLOAT", "default": 0.5}],
                    "remote": ["COMBO", {"remote": {"route": "/list"}}],
                    "mask": ["MASK"],
                },
            },
            "output": [],
        }
    }
    values = {
        "file": "a.png",
        "count": 0,
        "edge": "soft",
        "edge.blur": 0.5,
        "tags": [],
        "note": "",
        "flip": False,
        "either": 0.5,
    }
    assert (
        inputs(
            ui([node(1, "Foreign", values=[8, "fixed"])], []), "1", {}, from_object_info(described)
        )
        == {"seed": 8} | values
    )


def test_the_list_wins_over_outdated_names() -> None:
    """Editors load the list, and many users edit only the list."""
    named = {"image": "old.png", "upload": "image"}
    assert inputs(
        ui([node(2, "Other", values=["new.png", "image"], widgets_values_named=named)], []), "2"
    ) == {"image": "new.png"}


def test_values_behind_a_choice_are_those_that_it_brings() -> None:
    """Official templates have such nodes; `choice.name` names an input that a choice adds."""
    save = node(2, "SaveImageAdvanced", values=["x", "png", "8-bit", "sRGB"])
    resize = node(3, "ResizeImageMaskNode", values=["scale total pixels", 2, "lanczos"])
    graph = read(ui([save, resize], []), builtin_types()).graph
    assert graph.nodes["2"].inputs == {
        "filename_prefix": "x",
        "format": "png",
        "format.bit_depth": "8-bit",
        "format.input_color_space": "sRGB",
    }
    assert graph.nodes["3"].inputs == {
        "resize_type": "scale total pixels",
        "resize_type.megapixels": 2,
        "scale_method": "lanczos",
    }


def test_unknown_types_keep_values_by_file_names_and_are_reported_in_one_line() -> None:
    named = node(
        1,
        "One",
        values=[4, "fixed", "x"],
        widgets_values_named={"count": 4, "control_after_generate": "fixed", "text": "x"},
    )
    listed = node(
        2,
        "Two",
        [("image", "IMAGE", None), ("count", "INT", None, True), ("b", "FLOAT", None, True)],
        [],
        [4, "randomize", 0.5],
    )
    nameless = node(3, "Three", values=[1, "fixed"])
    workflow = read(ui([named, listed, nameless], []))
    assert workflow.graph.nodes["1"].inputs == {"count": 4, "text": "x"}
    assert workflow.graph.nodes["2"].inputs == {"count": 4, "b": 0.5}
    assert workflow.graph.nodes["3"].inputs == {"widget_0": 1, "widget_1": "fixed"}
    (unknown,) = (line for line in workflow.notes if "One, Two, Three" in line)
    assert "\n" not in unknown
    assert any("widget_0" in line and "3 (Three)" in line for line in workflow.notes)


def test_a_server_description_names_the_values_of_unknown_types() -> None:
    described = {
        "Foreign": {
            "input": {
                "required": {
                    "image": ["IMAGE"],
                    "size": ["COMFY_DYNAMICCOMBO_V3", {"options": [
                        {"key": "by side", "inputs": {"required": {"longer": ["INT", {"default": 512}]}}},
                        {"key": "by area", "inputs": {"required": {}}},
                    ]}],
                    "noise_seed": ["INT", {"default": 0}],
                    "method": [["area", "lanczos"]],
                    "wired": ["FLOAT", {"forceInput": True}],
                },
                "optional": {"note": ["STRING", {"multiline": True}]},
            },
            "output": ["IMAGE"],
            "output_name": ["picture"],
        }
    }  # fmt: skip
    foreign = from_object_info(described)
    values = ["by side", 2048, 5, "increment", "lanczos", "hello"]
    assert inputs(ui([node(1, "Foreign", values=values)], []), "1", {}, foreign) == {
        "size": "by side",
        "size.longer": 2048,
        "noise_seed": 5,
        "method": "lanczos",
        "note": "hello",
    }
    assert (
        inputs(
            ui([node(1, "Foreign", values=["by area", 5, "increment", "area", ""])], []),
            "1",
            {},
            foreign,
        )["noise_seed"]
        == 5
    )
    assert foreign["Foreign"].outputs[0].name == "picture"
    assert [wire.name for wire in foreign["Foreign"].wires] == ["image", "wired"]


def test_reroutes_notes_and_primitives_are_the_editors_own() -> None:
    nodes = [
        LOADER,
        node(2, "Reroute", [("", "*", 1)], [("", "*")]),
        node(3, "Reroute", [("", "*", 2)], [("", "*")]),
        node(4, "PrimitiveNode", [], [("INT", "INT")], [12, "fixed"]),
        node(
            5,
            "Sampler",
            [("model", "MODEL", 3), ("latent", "LATENT", None), ("steps", "INT", 4, True)],
            [],
            [7, "fixed", 99, "normal"],
        ),
        node(6, "MarkdownNote", values=["hello"]),
    ]
    links = [
        [1, 1, 0, 2, 0, "*"],
        [2, 2, 0, 3, 0, "*"],
        [3, 3, 0, 5, 0, "*"],
        [4, 4, 0, 5, 2, "INT"],
    ]
    workflow = read(ui(nodes, links))
    assert list(workflow.graph.nodes) == ["1", "5"]
    assert workflow.graph.nodes["5"].inputs == {
        "model": Link("1", 0),
        "seed": 7,
        "steps": 12,
        "mode": "normal",
    }


def test_set_and_get_nodes_are_links() -> None:
    nodes = [
        LOADER,
        node(2, "SetNode", [("MODEL", "MODEL", 1)], [("*", "*")], ["base"]),
        node(3, "GetNode", [], [("MODEL", "MODEL")], ["base"]),
        node(5, "Sampler", [("model", "MODEL", 2)], [], [7, "fixed", 9, "normal"]),
    ]
    assert inputs(ui(nodes, [[1, 1, 0, 2, 0, "*"], [2, 3, 0, 5, 0, "*"]]), "5")["model"] == Link(
        "1", 0
    )


def test_a_bypassed_node_gives_its_inputs_of_the_same_place_or_type() -> None:
    style = node(
        2,
        "Style",
        [("model", "MODEL", 1), ("latent", "LATENT", 2)],
        [("MODEL", "MODEL"), ("LATENT", "LATENT")],
        [1.0],
        mode=4,
    )
    swapped = node(6, "Swap", [("x", "LATENT", 4), ("y", "MODEL", 3)], [("m", "MODEL")], [], mode=4)
    nodes = [
        LOADER,
        node(3, "Empty", [], [("LATENT", "LATENT")]),
        style,
        swapped,
        node(
            5,
            "Sampler",
            [("model", "MODEL", 6), ("latent", "LATENT", 5)],
            [],
            [7, "fixed", 9, "normal"],
        ),
    ]
    links = [
        [1, 1, 0, 2, 0, "MODEL"],
        [2, 3, 0, 2, 1, "LATENT"],
        [3, 2, 0, 6, 1, "MODEL"],
        [4, 3, 0, 6, 0, "LATENT"],
        [5, 2, 1, 5, 1, "LATENT"],
        [6, 6, 0, 5, 0, "MODEL"],
    ]
    workflow = read(ui(nodes, links))
    assert "2" not in workflow.graph.nodes
    assert workflow.graph.nodes["5"].inputs["model"] == Link("1", 0)
    assert workflow.graph.nodes["5"].inputs["latent"] == Link("3", 0)


def test_inputs_from_a_muted_node_stay_open_and_are_reported() -> None:
    nodes = [
        {**LOADER, "mode": 2},
        node(5, "Sampler", [("model", "MODEL", 1)], [], [7, "fixed", 9, "normal"]),
    ]
    workflow = read(ui(nodes, [[1, 1, 0, 5, 0, "MODEL"]]))
    assert "model" not in workflow.graph.nodes["5"].inputs
    assert any("5.model (muted node 1)" in line for line in workflow.notes)


def test_version_1_with_link_objects_and_reroutes() -> None:
    document = {
        "version": 1,
        "state": {"lastNodeId": 2, "lastLinkId": 1, "lastGroupId": 0, "lastRerouteId": 1},
        "nodes": [
            LOADER,
            node(2, "Sampler", [("model", "MODEL", 1)], [], [7, "fixed", 9, "normal"]),
        ],
        "links": [
            {
                "id": 1,
                "origin_id": 1,
                "origin_slot": 0,
                "target_id": 2,
                "target_slot": 0,
                "type": "MODEL",
                "parentId": 1,
            }
        ],
        "reroutes": [{"id": 1, "pos": [5, 5], "linkIds": [1]}],
    }
    assert inputs(document, "2")["model"] == Link("1", 0)


def subgraph(
    identifier: str, nodes: list[Any], links: list[list[Any]], takes: Any = (), gives: Any = ()
) -> dict[str, Any]:
    keys = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return {
        "id": identifier,
        "name": f"the {identifier}",
        "version": 1,
        "inputNode": {"id": -10, "bounding": [0, 0, 1, 1]},
        "outputNode": {"id": -20, "bounding": [0, 0, 1, 1]},
        "inputs": [{"id": name, "name": name, "type": kind, "linkIds": []} for name, kind in takes],
        "outputs": [
            {"id": name, "name": name, "type": kind, "linkIds": []} for name, kind in gives
        ],
        "widgets": [],
        "nodes": nodes,
        "links": [dict(zip(keys, link, strict=True)) for link in links],
    }


INNER = subgraph(
    "inner",
    [
        node(
            3,
            "Sampler",
            [("model", "MODEL", 1), ("steps", "INT", 2, True)],
            [("LATENT", "LATENT")],
            [7, "fixed", 20, "normal"],
        )
    ],
    [[1, -10, 0, 3, 0, "MODEL"], [2, -10, 1, 3, 1, "INT"], [3, 3, 0, -20, 0, "LATENT"]],
    takes=[("model", "MODEL"), ("steps", "INT")],
    gives=[("LATENT", "LATENT")],
)
OUTER = subgraph(
    "outer",
    [
        node(
            8,
            "inner",
            [("model", "MODEL", 1), ("steps", "INT", 2, True)],
            [("LATENT", "LATENT")],
            [33],
        )
    ],
    [[1, -10, 0, 8, 0, "MODEL"], [2, -10, 1, 8, 1, "INT"], [3, 8, 0, -20, 0, "LATENT"]],
    takes=[("model", "MODEL"), ("steps", "INT")],
    gives=[("LATENT", "LATENT")],
)


def nested(values: Any, **more: Any) -> dict[str, Any]:
    outer = node(5, "outer", [("model", "MODEL", 1)], [("LATENT", "LATENT")], values, **more)
    nodes = [
        LOADER,
        outer,
        node(6, "Sampler", [("latent", "LATENT", 2)], [], [1, "fixed", 2, "normal"]),
    ]
    return ui(
        nodes,
        [[1, 1, 0, 5, 0, "MODEL"], [2, 5, 0, 6, 0, "LATENT"]],
        definitions={"subgraphs": [OUTER, INNER]},
    )


def test_nested_subgraphs_become_their_members() -> None:
    graph = read(nested(None)).graph
    assert list(graph.nodes) == ["1", "5:8:3", "6"]
    assert graph.nodes["5:8:3"].inputs["model"] == Link("1", 0)
    assert graph.nodes["6"].inputs["latent"] == Link("5:8:3", 0)


def test_values_on_an_instance_go_before_those_inside() -> None:
    # the inner instance shows 33, the node itself 20
    assert inputs(nested(None), "5:8:3")["steps"] == 33
    assert inputs(nested([44]), "5:8:3")["steps"] == 44
    assert inputs(nested([44], widgets_values_named={"steps": 44}), "5:8:3")["steps"] == 44


def test_a_list_of_proxies_shows_widgets_of_nodes_inside() -> None:
    one = node(
        5,
        "inner",
        [("model", "MODEL", 1)],
        [],
        [123],
        properties={"proxyWidgets": [["3", "seed"], ["3", "$$canvas"]]},
    )
    document = ui([LOADER, one], [[1, 1, 0, 5, 0, "MODEL"]], definitions={"subgraphs": [INNER]})
    assert inputs(document, "5:3") == {
        "seed": 123,
        "steps": 20,
        "mode": "normal",
        "model": Link("1", 0),
    }


def test_a_bypassed_and_a_muted_instance_have_no_members() -> None:
    two = subgraph("two", [], [], takes=[("latent", "LATENT")], gives=[("LATENT", "LATENT")])
    nodes = [
        node(3, "Empty", [], [("LATENT", "LATENT")]),
        node(5, "two", [("latent", "LATENT", 1)], [("LATENT", "LATENT")], mode=4),
        node(6, "Sampler", [("latent", "LATENT", 2)], [], [1, "fixed", 2, "normal"]),
        node(7, "inner", [], [("LATENT", "LATENT")], mode=2),
    ]
    links = [[1, 3, 0, 5, 0, "LATENT"], [2, 5, 0, 6, 0, "LATENT"]]
    graph = read(ui(nodes, links, definitions={"subgraphs": [two, INNER]})).graph
    assert list(graph.nodes) == ["3", "6"]
    assert graph.nodes["6"].inputs["latent"] == Link("3", 0)


SELF = subgraph("self", [node(1, "other")], [])
OTHER = subgraph("other", [node(1, "self")], [])


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (ui([], []), "UI workflow that has no nodes"),
        (ui([node(1, "Note")], []), "without active nodes"),
        (ui([LOADER, LOADER], []), "node 1: this id occurs twice"),
        (ui([node(2, "Save", [("images", "IMAGE", 5)])], []), 'node 2 (Save), input "images": link '
                                                              '5 does not exist'),
        (ui([node(2, "Save", [("images", "IMAGE", 5)])], [[5, 9, 0, 2, 0, "IMAGE"]]), "link 5 comes from node "
                                                                                      "9, which "
                                                                                      "is not in"),
        (ui([LOADER, node(2, "Save", [("images", "IMAGE", 5)])], [[5, 1, 4, 2, 0, "IMAGE"]]), "a link comes from "
                                                                                              "output 4, but "
                                                                                              "it has 1"),
        (ui([LOADER], [[1, 2]]), "link number 0 is a list of 2, expected [id, node"),
        (ui([LOADER], [[1, 1, "x", 2, 0, "A"]]), 'link 1 goes from 1, "x" to 2, 0'),
        (ui([LOADER], [[5, 1, 0, 1, 0, "A"], [5, 1, 0, 1, 1, "A"]]), "link 5: this id occurs twice"),
        (ui([5], []), "node number 0 is 5, expected an object with an id"),
        (ui([{"id": 1}], []), "node 1: type is null, expected a name"),
        (ui([node(1, "A", values="x")], []), 'node 1: widgets_values is "x", expected a list '
                                             'or an object'),
        (ui([node(1, "A") | {"mode": "x"}], []), 'node 1: mode is "x", expected a number'),
        (ui([LOADER], [], version=2), "version 2, newer"),
        (ui([LOADER], {}), "links is an object of 0, expected a list"),
        (ui([LOADER], [], definitions={"subgraphs": [1]}), "subgraph 0 is 1, expected an "
                                                           "object with an id"),
        (ui([node(1, "self")], [], definitions={"subgraphs": [SELF, OTHER]}), "contains itself: "
                                                                              "the self -> the "
                                                                              "other -> the self"),
        (ui([node(1, "A", values=[float("nan")])], []), "node 1 contains NaN"),
        (
            ui([node(1, "Reroute", [("", "*", 1)], [("", "*")]), node(2, "Save", [("images", "IMAGE", 1)])], [[1, 1, 0, 1, 0, "*"]]),
            "node 2 (Save), input images: its link 1 is part of a cycle",
        ),
    ],
)  # fmt: skip
def test_file_errors_are_one_clear_line(document: Any, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_workflow(document, TYPES)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bomb_of_subgraphs_is_refused_at_once() -> None:
    """Thirty definitions, each with ten instances of the next, would be 10^30 nodes."""
    bombs = [subgraph(f"s{n}", [node(k, f"s{n + 1}") for k in range(10)], []) for n in range(30)]
    began = time.perf_counter()
    with pytest.raises(InputError, match="more than 100,000 nodes"):
        read(ui([node(1, "s0")], [], definitions={"subgraphs": bombs}))
    assert time.perf_counter() - began < 20


def test_deep_nesting_and_long_ways_need_no_recursion() -> None:
    deep = [
        subgraph(f"s{n}", [node(1, f"s{n + 1}" if n < 999 else "Loader")], []) for n in range(1000)
    ]
    with pytest.raises(InputError, match="nested more than 50 levels deep"):
        read(ui([node(1, "s0")], [], definitions={"subgraphs": deep}))
    count = 20_000
    reroutes = [node(n, "Reroute", [("", "*", n)], [("", "*")]) for n in range(2, count)]
    links = [[n, n - 1, 0, n, 0, "*"] for n in range(2, count)]
    ends = [
        node(count + n, "Sampler", [("model", "MODEL", count + n)], [], [1, "fixed", 2, "normal"])
        for n in range(2000)
    ]
    links += [[count + n, count - 1, 0, count + n, 0, "*"] for n in range(2000)]
    began = time.perf_counter()
    graph = read(ui([LOADER, *reroutes, *ends], links)).graph
    assert graph.nodes[str(count + 1999)].inputs["model"] == Link("1", 0)
    assert time.perf_counter() - began < 20
