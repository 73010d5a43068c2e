"""Graph errors have ComfyUI's types, and data that lets clients mark the input."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from trivial_nodes import TYPES, node

from katz_graph.checks.problem import ProblemKind
from katz_graph.checks.validate import check
from katz_graph.comfy.v1.adapter import V1Class
from katz_graph.formats.api import from_api
from katz_graph.formats.prompt_errors import KINDS, MAX_PROBLEMS, node_errors, prompt_error
from katz_graph.node.literals import LiteralFault
from katz_graph.packs import load_registry


def errors(document: dict[str, Any]) -> dict[str, Any]:
    graph = from_api(document)
    return json.loads(json.dumps(node_errors(check(graph, TYPES), graph, TYPES), allow_nan=False))  # type: ignore[no-any-return]


def only(document: dict[str, Any], identifier: str = "1") -> dict[str, Any]:
    (found,) = errors(document)[identifier]["errors"]
    assert set(found) == {"type", "message", "details", "extra_info"}
    return found  # type: ignore[no-any-return]


def knob(**inputs: Any) -> dict[str, Any]:
    return only({"1": node("Knobs", **inputs), "2": node("Save", value=["1", 0])})


def test_every_kind_of_problem_has_a_type() -> None:
    kinds = {name for part in get_args(ProblemKind) for name in (get_args(part) or (part,))}
    assert kinds == KINDS.keys() and set(get_args(LiteralFault)) < kinds


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        ({"count": 0}, "value_smaller_than_min"),
        ({"count": 11}, "value_bigger_than_max"),
        ({"count": "11"}, "value_bigger_than_max"),
        ({"ratio": -0.1}, "value_smaller_than_min"),
        ({"ratio": 1e9}, "value_bigger_than_max"),
        ({"count": "abc"}, "invalid_input_type"),
        ({"count": 3.7}, "invalid_input_type"),
        ({"count": {"a": 1}}, "invalid_input_type"),
        ({"flag": "maybe"}, "invalid_input_type"),
        ({"text": True}, "invalid_input_type"),
        ({"mode": "bicubik"}, "value_not_in_list"),
        ({"mode": 7}, "value_not_in_list"),
    ],
)
def test_literals(inputs: dict[str, Any], kind: str) -> None:
    found = knob(**inputs)
    (name, value), *_ = inputs.items()
    assert found["type"] == kind
    assert found["details"].startswith(f"{name}: got ")
    assert (
        found["extra_info"]["input_name"] == name and found["extra_info"]["received_value"] == value
    )
    assert found["extra_info"]["input_config"][0] in (
        "INT",
        "FLOAT",
        "BOOLEAN",
        "STRING",
        ["nearest", "bilinear", "bicubic"],
    )


def test_bounds_are_reported() -> None:
    assert knob(count=11)["extra_info"]["input_config"] == [
        "INT",
        {"default": 1, "min": 1, "max": 10},
    ]


def test_a_long_value_is_not_sent_back() -> None:
    assert len(json.dumps(knob(count="9" * 100_000))) < 2000


def test_a_missing_input() -> None:
    found = only({"1": node("Save")})
    assert (found["type"], found["extra_info"]["input_name"]) == ("required_input_missing", "value")
    assert "value" in found["details"] and "received_value" not in found["extra_info"]


def test_links() -> None:
    wrong = only(
        {
            "1": node("UseThing", thing=["2", 0]),
            "2": node("Number", value=0),
            "3": node("Save", value=["1", 0]),
        }
    )
    assert wrong["type"] == "return_type_mismatch"
    assert wrong["extra_info"] == {
        "input_name": "thing", "input_config": ["THING", {}], "linked_node": ["2", 0], "received_type": "INT"
    }  # fmt: skip
    for link in (["77", 0], ["2", 1], ["2", -1]):
        dead = only({"1": node("Save", value=link), "2": node("Number", value=0)})
        assert (dead["type"], dead["extra_info"]["linked_node"]) == ("bad_linked_input", link)
    literal = only({"1": node("UseThing", thing=5), "3": node("Save", value=["1", 0])})
    assert (literal["type"], literal["extra_info"]["received_value"]) == ("bad_linked_input", 5)


def test_a_link_to_nowhere_in_an_input_that_is_not_declared() -> None:
    found = only({"1": node("Save", value=3, spare=["77", 0])})
    assert (found["type"], found["extra_info"]["input_name"]) == ("bad_linked_input", "spare")


def test_a_cycle_names_its_nodes() -> None:
    found = only(
        {
            "1": node("Echo", value=["2", 0]),
            "2": node("Echo", value=["1", 0]),
            "3": node("Save", value=["2", 0]),
        }
    )
    assert found["type"] == "dependency_cycle"
    assert found["details"].startswith("is in a cycle: 1 (Echo) -> 2 (Echo) -> 1 (Echo)")
    assert found["extra_info"] == {"node_id": "1", "cycle_nodes": ["1", "2"]}


def test_only_the_outputs_that_depend_on_a_node_are_named() -> None:
    document = {
        "1": node("Knobs", count=99),
        "2": node("Echo", value=["1", 0]),
        "3": node("Save", value=["2", 0]),
        "4": node("Save", value=["1", 1]),
        "5": node("Number", value=0),
        "6": node("Save", value=["5", 0]),
        "7": node("Save"),
    }
    found = errors(document)
    assert found["1"]["dependent_outputs"] == ["3", "4"] and found["1"]["class_type"] == "Knobs"
    assert found["7"]["dependent_outputs"] == ["7"]
    assert found.keys() == {"1", "7"}
    assert prompt_error(check(from_api(document), TYPES)) is None


def test_the_details_of_the_whole_name_nodes_far_from_the_output() -> None:
    document = {
        "1": node("Knobs", count=99),
        "2": node("Echo", value=["1", 0]),
        "3": node("Save", value=["2", 0]),
    }
    found = prompt_error(check(from_api(document), TYPES))
    assert found is not None and found["type"] == "prompt_outputs_failed_validation"
    assert found["details"] == "node 1 (Knobs), count: got 99, expected a whole number from 1 to 10"


@pytest.mark.parametrize(
    "document",
    [{"1": node("Nunber", a=1)}, {"1": node("Nunber"), "2": node("Save", value=["1", 0])}],
)
def test_a_type_that_is_not_installed(document: dict[str, Any]) -> None:
    document["1"]["_meta"] = {"title": "My number"}
    found = prompt_error(check(from_api(document), TYPES))
    assert found is not None and found["type"] == "missing_node_type"
    assert found["extra_info"] == {
        "node_id": "1",
        "class_type": "Nunber",
        "node_title": "My number",
    }
    assert 'did you mean "Number"?' in found["details"]


def test_no_output() -> None:
    found = prompt_error(check(from_api({"1": node("Number", value=0)}), TYPES))
    assert found is not None and found["type"] == "prompt_no_outputs" and "Save" in found["details"]


def test_thousands_of_problems_are_counted() -> None:
    document = {str(number): node("Save") for number in range(3000)}
    found = prompt_error(check(from_api(document), TYPES))
    assert found is not None and found["details"].endswith(
        f"and {3000 - MAX_PROBLEMS:,} more problems"
    )
    assert len(errors(document)) == MAX_PROBLEMS


class Picky:
    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "go", "mine", True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"word": ("STRING", {})}}

    @classmethod
    def VALIDATE_INPUTS(cls, word: str) -> Any:
        return (
            word == "good"
            or {"bad": "say good", "worse": {}["key"] if word == "worse" else None}[word]
        )

    def go(self, word: str) -> None: ...


@pytest.mark.parametrize(
    ("word", "kind", "details"),
    [
        ("bad", "custom_validation_failed", "say good"),
        ("worse", "exception_during_validation", "KeyError: 'key'"),
    ],
)
def test_a_packs_own_check(word: str, kind: str, details: str) -> None:
    types = {"Picky": V1Class("Picky", Picky, "Picky").describe()}
    graph = from_api({"1": node("Picky", word=word)})
    (found,) = node_errors(check(graph, types), graph, types)["1"]["errors"]
    assert found["type"] == kind and details in found["details"]
    sound = from_api({"1": node("Picky", word="good")})
    assert node_errors(check(sound, types), sound, types) == {}


def test_a_node_of_the_loop_that_stands_in_none() -> None:
    types = load_registry()[0]
    graph = from_api({"1": node("StepPattern"), "2": node("PreviewAny", source=["1", 0])})
    found = node_errors(check(graph, types), graph, types)
    assert {error["type"] for error in found["1"]["errors"]} == {
        "required_input_missing",
        "custom_validation_failed",
    }
