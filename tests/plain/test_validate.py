"""All errors of a graph are reported at once, before it runs, with node, input, value and
expectation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trivial_nodes import TYPES, node, run

from katz_graph.checks.problem import Checked
from katz_graph.checks.validate import check, connects, validate
from katz_graph.core.errors import InputError, KatzError
from katz_graph.core.graph import Link
from katz_graph.files.folders import Folders
from katz_graph.formats.api import from_api

CHAIN = 10_000


def checked(folders: Folders | None = None, **nodes: Any) -> Checked:
    return check(
        from_api({name.lstrip("n"): value for name, value in nodes.items()}), TYPES, folders
    )


def only_error(**nodes: Any) -> str:
    result = checked(**nodes)
    assert len(result.errors) == 1, result.problems
    message = str(result.errors[0])
    assert message.isprintable()
    return message


def knob(**inputs: Any) -> str:
    return only_error(n1=node("Knobs", **inputs), n2=node("Save", value=["1", 0]))


def test_a_sound_graph_has_no_problems() -> None:
    result = checked(
        n1=node("Number", value=3),
        n2=node("Add", a=["1", 0], b=["1", 0]),
        n3=node("Save", value=["2", 0]),
    )
    assert result.problems == ()
    assert result.or_raise() is result.graph


def test_unknown_type_names_the_nearest() -> None:
    message = only_error(n1=node("Nunber"), n2=node("Save", value=["1", 0]))
    assert message == (
        'node 1 (Nunber): unknown node type; did you mean "Number"?; `katz nodes` lists all, '
        "--packs adds a folder of packs"
    )


def test_missing_inputs() -> None:
    assert (
        only_error(n1=node("Save"))
        == "node 1 (Save), value: is missing; expected a link to an output of type *"
    )
    assert "node 1 (LoadFile), name: is missing" in only_error(
        n1=node("LoadFile"), n2=node("Save", value=["1", 0])
    )


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({"count": "abc"}, 'count: got "abc", expected a whole number from 1 to 10'),
        ({"count": 3.7}, "count: got 3.7, expected a whole number from 1 to 10"),
        ({"count": True}, "count: got true, expected a whole number from 1 to 10"),
        ({"count": 11}, "count: got 11, expected a whole number from 1 to 10"),
        ({"count": 0}, "count: got 0, expected"),
        ({"count": None}, None),
        ({"count": [1, 2, 3]}, "count: got a list of 3, expected"),
        ({"count": {"a": 1}}, "count: got an object of 1, expected"),
        ({"ratio": 1.5}, "ratio: got 1.5, expected a number from 0 to 1"),
        ({"ratio": "nan"}, 'ratio: got "nan", expected a number from 0 to 1'),
        ({"flag": "maybe"}, 'flag: got "maybe", expected true or false'),
        ({"flag": 2}, "flag: got 2, expected true or false"),
        ({"text": True}, "text: got true, expected text"),
        (
            {"mode": "bicubik"},
            'mode: got "bicubik", expected one of "nearest", "bilinear", "bicubic"; did you '
            'mean "bicubic"?',
        ),
        ({"mode": 1}, "mode: got 1, expected one of"),
    ],
)
def test_literals(inputs: dict[str, Any], expected: str | None) -> None:
    if expected is None:
        assert checked(n1=node("Knobs", **inputs), n2=node("Save", value=["1", 0])).problems == ()
    else:
        assert f"node 1 (Knobs), {expected}" in knob(**inputs)


@pytest.mark.parametrize(
    ("came", "taken"),
    [
        ({"count": "5"}, {"count": 5}),
        ({"count": 5.0}, {"count": 5}),
        ({"ratio": 1}, {"ratio": 1.0}),
        ({"flag": "false"}, {"flag": False}),
        ({"flag": 1}, {"flag": True}),
        ({"text": 7}, {"text": "7"}),
    ],
)
def test_literals_take_the_type_of_their_input(came: dict[str, Any], taken: dict[str, Any]) -> None:
    result = checked(n1=node("Knobs", **came), n2=node("Save", value=["1", 0]))
    assert result.problems == ()
    (name, value), *_ = taken.items()
    got = result.graph.nodes["1"].inputs[name]
    assert got == value and type(got) is type(value)


def test_any_typed_inputs_take_literals_as_they_are() -> None:
    assert checked(n1=node("Save", value=True)).graph.nodes["1"].inputs["value"] is True


def test_a_wire_takes_no_literal() -> None:
    assert (
        only_error(n1=node("UseThing", thing=5))
        == "node 1 (UseThing), thing: got 5, expected a link to an output of type THING"
    )


def test_a_link_of_the_wrong_type() -> None:
    message = only_error(n1=node("Number", value=0), n2=node("UseThing", thing=["1", 0]))
    assert (
        message == "node 2 (UseThing), thing: got INT from output 0 (INT) of node 1 (Number), "
        "expected THING"
    )


@pytest.mark.parametrize(
    ("source", "target", "fits"),
    [("INT", "INT", True), ("INT", "FLOAT", False), ("FLOAT", "INT", False), ("*", "MODEL", True), ("MODEL", "*", True),
     ("IMAGE", "MASK,IMAGE", True), ("LATENT", "MASK,IMAGE", False), ("STRING", "COMBO", False), ("COMBO", "STRING", False), ("INT", "STRING", False),
     ("INT", "IMAGE,FLOAT", False), ("INT,MASK", "FLOAT", False), ("STRING,BOOLEAN", "STRING,INT", True),
     ("FLOAT,BOOLEAN", "STRING,INT", False), ("*", "IMAGE,FLOAT", True), ("IMAGE,*", "LATENT", True)],
)  # fmt: skip
def test_socket_compatibility(source: str, target: str, fits: bool) -> None:
    assert connects(source, target) is fits


@pytest.mark.parametrize("name", ["value", "undeclared"])
def test_a_link_that_leads_nowhere(name: str) -> None:
    """Undeclared inputs count too: their links are followed when the node runs."""
    assert f'node 2 (Save), {name}: links to node "77", which is not in the workflow' in only_error(
        n1=node("Number", value=0), n2=node("Save", **{"value": ["1", 0], name: ["77", 0]})
    )
    for output in (1, -1):
        message = only_error(
            n1=node("Number", value=0), n2=node("Save", **{"value": ["1", 0], name: ["1", output]})
        )
        assert f"links to output {output} of node 1 (Number), which has 0 (INT)" in message
    assert "which has no outputs" in only_error(
        n1=node("MakeThing"),
        n2=node("UseThing", thing=["1", 0]),
        n3=node("Save", **{"value": 1, name: ["2", 0]}),
    )


def test_unknown_inputs_are_warnings_and_take_no_part() -> None:
    result = checked(n1=node("Number", valeu=5), n2=node("Save", value=["1", 0]))
    assert result.errors == ()
    assert 'Number has no input of this name; did you mean "value"?' in str(result.warnings[0])
    assert dict(result.graph.nodes["1"].inputs) == {}


def test_a_cycle_is_named_with_its_path() -> None:
    message = only_error(
        n1=node("Echo", value=["2", 0]), n2=node("Add", a=["1", 0]), n3=node("Save", value=["2", 0])
    )
    assert "1 (Echo) -> 2 (Add) -> 1 (Echo)" in message


def test_each_knot_of_cycles_is_named_once() -> None:
    pairs = {f"n{i}": node("Echo", value=[str(i ^ 1), 0]) for i in range(2, 10)}
    result = checked(**pairs, n20=node("Echo", value=["20", 0]))
    assert len([problem for problem in result.problems if "cycle" in problem.message]) == 5


def test_a_long_cycle_is_shortened() -> None:
    ring = {str(i): node("Echo", value=[str((i - 1) % CHAIN), 0]) for i in range(CHAIN)}
    ring["out"] = node("Save", value=["0", 0])
    messages = [problem.message for problem in check(from_api(ring), TYPES).errors]
    assert len(messages) == 1
    assert "... 9,994 more ..." in messages[0]


def test_no_output_node() -> None:
    assert (
        only_error(n1=node("Number", value=0))
        == "the workflow has no output node, so nothing would run; add one of Save, UseThing"
    )


def test_all_problems_at_once_in_the_order_of_the_file() -> None:
    problems = checked(
        n5=node("Save"),
        n1=node("Knobs", count=99, ratio=7, mode="x"),
        n2=node("Nothing", a=["1", 0]),
        n3=node("UseThing", thing=["1", 0]),
        n4=node("Save", value=["1", 9]),
    ).problems
    assert [problem.node for problem in problems] == ["5", "1", "1", "1", "2", "3", "4"]


def test_spare_nodes_only_warn() -> None:
    """Nodes that lead to no output must not stop the others."""
    result = checked(
        n1=node("Number", value=0),
        n2=node("Save", value=["1", 0]),
        n3=node("Add"),
        n4=node("Echo", value=["5", 0]),
        n5=node("Number", value=-999),
    )
    assert result.errors == ()
    assert {problem.node for problem in result.warnings} == {"3", "5"}
    assert run(result.or_raise()).result.outputs == {"2": (0,)}


def test_a_spare_node_of_unknown_type_warns_unless_it_may_be_an_output() -> None:
    save = {"n1": node("Number", value=0), "n2": node("Save", value=["1", 0])}
    assert checked(**save, n3=node("Sticker", text="note")).errors == ()
    assert "SaveVideo" in str(checked(**save, n3=node("SaveVideo", value=["1", 0])).errors[0])


def test_files(tmp_path: Path) -> None:
    (tmp_path / "loras").mkdir()
    (tmp_path / "loras" / "comic.safetensors").touch()
    folders = Folders((tmp_path,))

    def message(name: str) -> str:
        return str(
            checked(
                folders, n1=node("LoadFile", name=name), n2=node("Save", value=["1", 0])
            ).errors[0]
        )

    assert (
        checked(
            folders, n1=node("LoadFile", name="comic.safetensors"), n2=node("Save", value=["1", 0])
        ).errors
        == ()
    )
    assert (
        'node 1 (LoadFile), name: "comix.safetensors" is not in loras; did you mean '
        '"comic.safetensors"?' in message("comix.safetensors")
    )
    assert "is a pickle" in message("comic.ckpt")
    assert "points outside of the loras folders" in message("../secret.safetensors")


def test_titles_distinguish_nodes() -> None:
    document = {"1": {**node("Save"), "_meta": {"title": "final picture"}}}
    assert str(validate(from_api(document), TYPES)[0]).startswith(
        'node 1 (Save "final picture"), value: is missing'
    )


def test_file_contents_cannot_control_the_terminal() -> None:
    document = {"\x1b[2J\n": node("Save"), "2": node("Bad\x07Type\nline", x=["3", 0])}
    for problem in validate(from_api(document), TYPES):
        assert str(problem).isprintable()


def test_rules_see_sound_graphs_only_and_their_problems_are_listed() -> None:
    seen = []

    def rule(graph: Any, types: Any) -> list[tuple[str, str, str]]:
        seen.append(list(graph.nodes))
        return [("1", "value", "is odd")]

    sound = from_api(
        {"1": node("Number", value=3), "2": node("Save", value=["1", 0]), "3": node("Sticker")}
    )
    assert (
        str(check(sound, TYPES, rules={"region": rule}).errors[0])
        == "node 1 (Number), value: is odd"
    )
    check(from_api({"1": node("Save", value=["9", 0])}), TYPES, rules={"region": rule})
    assert seen == [["1", "2"]]


def test_a_chain_of_ten_thousand_broken_nodes() -> None:
    chain = {str(i): node(f"Unknown{i}", value=[str(i - 1), 0]) for i in range(1, CHAIN)}
    assert len(validate(from_api(chain), TYPES)) >= CHAIN


NAMES = st.sampled_from(["1", "2", "3", "4"])
VALUES = st.one_of(
    st.tuples(NAMES | st.just("9"), st.integers(-1, 2)).map(list),
    st.integers(),
    st.text(max_size=3),
    st.none(),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
)
NODES = st.builds(
    lambda kind, inputs: {"class_type": kind, "inputs": inputs},
    st.sampled_from([*TYPES, "Nothing"]).filter(lambda name: name not in ("Fail", "Countdown")),
    st.dictionaries(
        st.sampled_from(
            [
                "value",
                "a",
                "b",
                "count",
                "mode",
                "thing",
                "condition",
                "on_true",
                "on_false",
                "name",
                "odd",
            ]
        ),
        VALUES,
        max_size=4,
    ),
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, NODES, min_size=1))
def test_any_graph_is_refused_by_named_problems_or_runs(document: dict[str, Any]) -> None:
    result = check(from_api(document), TYPES)
    if result.errors:
        assert all(str(problem).isprintable() for problem in result.problems)
        with pytest.raises(InputError):
            result.or_raise()
        try:  # running it anyway ends with a readable error
            run(result.graph).result.raise_failures()
        except KatzError as error:
            assert str(error)
    else:
        done = run(result.graph).result
        assert done.outputs and not done.failures


def test_links_are_data() -> None:
    assert from_api({"1": node("Save", value=[2, 0])}).nodes["1"].inputs["value"] == Link("2", 0)


def test_an_error_refuses_only_the_outputs_that_depend_on_it() -> None:
    """Covers an unknown type, a wrong literal, a link that leads nowhere and a cycle."""
    good = {"n1": node("Number", value=3), "n2": node("Save", value=["1", 0])}
    broken = [
        node("Nunber"),
        node("Number", value="x"),
        node("Echo", value=["77", 0]),
        node("Echo", value=["3", 0]),
    ]
    for bad in broken:
        result = checked(
            **good, n3=bad, n4=node("Echo", value=["3", 0]), n5=node("Save", value=["4", 0])
        )
        assert result.targets == ("2",) and result.refused == ("5",) and len(result.errors) == 1
        assert run(result.graph, targets=result.targets).result.outputs == {"2": (3,)}


def test_targets_decide_the_needed_nodes() -> None:
    document = {
        "n1": node("Number", value=3),
        "n2": node("Save", value=["1", 0]),
        "n3": node("Nunber"),
        "n4": node("Save", value=["3", 0]),
    }
    graph = from_api({name.lstrip("n"): value for name, value in document.items()})
    chosen = check(graph, TYPES, targets=["1"])
    assert chosen.errors == () and chosen.targets == ("1",)
    assert check(graph, TYPES, targets=["4", "2"]).refused == ("4",)
    with pytest.raises(InputError, match='target node "9" is not in the workflow'):
        check(graph, TYPES, targets=["9"])


def test_a_node_of_unknown_type_that_may_be_an_output_refuses_itself() -> None:
    result = checked(
        n1=node("Number", value=0),
        n2=node("Save", value=["1", 0]),
        n3=node("SaveVideo", value=["1", 0]),
    )
    assert result.targets == ("2",) and result.refused == ("3",)


def test_rules_see_the_inputs_of_valid_outputs() -> None:
    seen = []

    def rule(graph: Any, types: Any) -> list[tuple[str, str, str]]:
        seen.append(list(graph.nodes))
        return []

    document = {
        "1": node("Number", value=0),
        "2": node("Save", value=["1", 0]),
        "3": node("Nunber"),
        "4": node("Save", value=["3", 0]),
    }
    assert check(from_api(document), TYPES, rules={"region": rule}).targets == ("2",)
    assert seen == [["1", "2"]]
