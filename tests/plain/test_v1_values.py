"""V1 nodes accept the values that they declare, and check some themselves."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from trivial_nodes import node
from v1_classes import echo, pack_class, problem, saved, types

from katz_graph.checks.validate import check
from katz_graph.formats.api import from_api


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


def test_validate_inputs_replaces_built_in_checks_of_named_inputs() -> None:
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
    assert "rejected these inputs" in problem({"1": node("Made", a=60, b=50)}, every)


def test_validate_inputs_may_read_its_node_id() -> None:
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


def test_validate_inputs_with_input_types_decides_valid_links() -> None:
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
        {"0": node("Number", value=0), "1": node("Made", x=["0", 0])}, classes
    )
