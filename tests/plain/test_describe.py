"""`katz nodes` and `katz nodes NAME` describe nodes as text and as JSON."""

from __future__ import annotations

import json
from io import StringIO
from typing import Annotated, Literal

import pytest
from rich.console import Console
from trivial_nodes import TYPES

from katz_graph.cli.listings import node_json, node_list, node_page, nodes_json
from katz_graph.files.folders import Folders
from katz_graph.node import Node, ShownFor
from katz_graph.node.wires import Boolean


def printed(renderable: object) -> str:
    console = Console(file=StringIO(), width=200)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_list_has_every_node_with_its_description() -> None:
    text = printed(node_list(TYPES))
    assert all(name in text for name in TYPES)
    assert "A whole number." in text


def test_a_sentence_over_two_lines_of_source_is_one() -> None:
    class Wrapped(Node):
        """One that continues
        here.

        Another paragraph."""

        def run(self) -> Boolean:
            return True

    kind = Wrapped.describe()
    assert kind.description == "One that continues here.\n\nAnother paragraph."
    assert "One that continues here." in printed(node_list({"Wrapped": kind}))


def test_a_page_explains_knobs_wires_and_outputs() -> None:
    text = printed(node_page(TYPES["Knobs"]))
    assert "One knob of each kind." in text
    assert (
        "a whole number from 1 to 10" in text
        and "one of nearest, bilinear, bicubic" in text
        and '"nearest"' in text
    )
    assert "0 INT" in text and "1 STRING" in text
    assert "the number" in printed(node_page(TYPES["Number"]))
    lazy = printed(node_page(TYPES["Choose"]))
    assert "optional, evaluated only if needed" in lazy
    assert "(required)" in printed(node_page(TYPES["LoadFile"], Folders()))


def test_json_describes_the_same_node() -> None:
    described = node_json(TYPES["Knobs"])
    assert described["inputs"]["count"] == {
        "type": "INT",
        "kind": "knob",
        "required": False,
        "default": 1,
        "minimum": 1,
        "maximum": 10,
    }
    assert described["inputs"]["mode"]["choices"] == ["nearest", "bilinear", "bicubic"]
    assert described["outputs"] == [
        {"name": "INT", "type": "INT"},
        {"name": "STRING", "type": "STRING"},
    ]
    assert set(json.loads(json.dumps(nodes_json(TYPES.values(), Folders())))) == set(TYPES)


Way = Literal["to a width", "by a factor"]


def test_inputs_of_a_choice_name_it_and_need_a_default() -> None:
    class Fits(Node):
        way: Way = "to a width"
        width: Annotated[int, ShownFor("way", ("to a width",))] = 64

        def run(self) -> Boolean:
            return self.width == 64

    described = Fits.describe()
    assert list(described.inputs) == ["way", "way.width"]
    assert described.run(None, {"way.width": 64}) == (True,)  # type: ignore[arg-type]

    class Elsewhere(Node):
        way: Way = "to a width"
        width: Annotated[int, ShownFor("way", ("to a heigth",))] = 64

        def run(self) -> Boolean: ...

    class Needed(Node):
        way: Way = "to a width"
        width: Annotated[int, ShownFor("way", ("to a width",))]

        def run(self) -> Boolean: ...

    with pytest.raises(TypeError, match=r"'width' is shown for .*heigth.* of 'way', which has"):
        Elsewhere.describe()
    with pytest.raises(TypeError, match="'width' is not shown for every choice of 'way'"):
        Needed.describe()
