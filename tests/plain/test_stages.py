"""Model families declare stages; the planner reads the declarations and names no stage."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from katz_graph.core.errors import InputError
from katz_graph.ir.program import Variant
from katz_graph.ir.region import Operation, Ref
from katz_graph.models.stage_registry import register_stages, stage, stages
from katz_graph.models.stages import Stage, uncounted
from katz_graph.planner.changes import parse_places
from katz_graph.planner.passes.decompose import dependencies
from katz_graph.planner.region import stage_of

ROOT = Path(__file__).parents[2]
NAMED = {"nodes/denoise.py", "nodes/transformer.py"}  # nodes for stages
# also names of folders, parts of files and arguments
OTHERWISE = {"controlnet", "text_encoder", "concatenated"}


@pytest.fixture
def family() -> Iterator[None]:
    """Registers a made-up family."""
    register_stages(
        [
            Stage("odd_blocks", uncounted, costed=True, placeable=True, group="odd"),
            Stage("odd_table", uncounted, reads_text=True),
        ]
    )
    yield
    stages.cache_clear()


def test_a_stage_of_a_family_that_is_registered_is_known_to_all(family: None) -> None:
    operations = (
        Operation("a", "odd_table", "Odd", {}),
        Operation("b", "odd_blocks", "Odd", {"table": Ref("a")}),
    )
    assert list(dependencies(Variant("only", operations, Ref("b"), {}, (0,)))) == ["b"]
    assert parse_places(["odd=cpu:1"], ["cpu:0", "cpu:1"]) == {"odd_blocks": ("cpu:1",)}
    with pytest.raises(
        InputError, match=r"unknown stage 'odd_table'; choose one of .*odd, .*odd_blocks"
    ):
        parse_places(["odd_table=cpu"], ["cpu"])


def test_a_name_is_declared_once(family: None) -> None:
    with pytest.raises(ValueError, match="'unet_mid' is declared twice"):
        register_stages([Stage("unet_mid", uncounted)])


def test_an_unknown_stage_is_an_error_wherever_it_is_met() -> None:
    with pytest.raises(
        InputError, match=r"node 5 \(Odd\): its stage 'odd' is unknown, so it cannot be planned"
    ):
        stage_of(Operation("5", "odd", "Odd", {}))
    with pytest.raises(InputError, match="the stage 'odd' is unknown"):
        stage("odd")


def test_stages_refer_only_to_declared_inputs() -> None:
    known = stages()
    for one in known.values():
        assert {*one.hoists.values(), *one.stands_for} <= set(known), one.name
        assert all(known[name].once is not None for name in one.hoists.values()), one.name
        assert (one.label and one.colour) or not one.costed, one.name


def test_names_of_stages_stand_in_their_families_alone() -> None:
    names = {
        name
        for name, one in stages().items()
        if one.costed or one.hoists or one.reads_text or "_" in name
    }
    found = set()
    for layer in ("katz_graph", "nodes", "executor", "web", "kernels"):
        for file in (ROOT / layer).rglob("*.py"):
            place = file.relative_to(ROOT)
            if place.is_relative_to("katz_graph/models/families") or place.is_relative_to(
                "katz_graph/bench"
            ):
                continue
            texts = {
                node.value
                for node in ast.walk(ast.parse(file.read_text()))
                if isinstance(node, ast.Constant)
            }
            if texts & (names - OTHERWISE):
                found.add(str(place))
    assert found == NAMED
