"""`--set NODE.INPUT=VALUE` finds node and input even if names have dots."""

from __future__ import annotations

import pytest

from katz_graph.api.prepare import set_inputs
from katz_graph.core.errors import InputError
from katz_graph.core.graph import Graph, NodeCall
from katz_graph.packs import builtin_types


def changed(target: str) -> dict[str, int]:
    """Sets an input to 7; returns 7 by node and input."""
    graph = Graph(
        {
            "3": NodeCall("ResizeImageMaskNode", {}),
            "3.1": NodeCall("ResizeImageMaskNode", {}, "second. one"),
            "a": NodeCall("KSampler", {}, "a.b"),
        }
    )
    made, _ = set_inputs(graph, builtin_types(), [f"{target}=7"])
    return {
        f"{node} {name}": value
        for node, call in made.nodes.items()
        for name, value in call.inputs.items()
    }


@pytest.mark.parametrize(
    ("target", "set_there"),
    [
        ("3.resize_type.width", "3 resize_type.width"),
        ("3.1.resize_type.width", "3.1 resize_type.width"),
        ("second. one.resize_type.width", "3.1 resize_type.width"),
        ("a.b.steps", "a steps"),
        ("a.steps", "a steps"),
        ("KSampler.steps", "a steps"),
    ],
)
def test_the_longest_name_of_a_node_counts(target: str, set_there: str) -> None:
    assert changed(target) == {set_there: 7}


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("steps", "expected NODE.INPUT=VALUE"),
        (".steps", "expected NODE.INPUT=VALUE"),
        ("a.", "expected NODE.INPUT=VALUE"),
        ("nobody.steps", "no node 'nobody' in the workflow"),
        ("ResizeImageMaskNode.resize_type.width", "is the name of several nodes"),
        ("3.resize_type.wide", "has no input 'resize_type.wide'"),
    ],
)
def test_settings_without_an_input_give_one_line(target: str, line: str) -> None:
    with pytest.raises(InputError, match=line) as refused:
        changed(target)
    assert "\n" not in str(refused.value)
