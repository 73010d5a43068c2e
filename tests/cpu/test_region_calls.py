"""Nodes of other conventions in a step region are called as elsewhere, and refused with an error
that names them where unsupported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command import Katz
from foreign_packs import forgetting_shims
from PIL import Image
from region_pack import COMBINED, guided_by_pack


@pytest.fixture(autouse=True)
def forgetting() -> Iterator[None]:
    with forgetting_shims():
        yield


def test_a_node_of_the_first_convention_runs_inside_the_loop(katz: Katz, tmp_path: Path) -> None:
    own, foreign, packs = guided_by_pack(tmp_path)
    expected = katz("run", own, "--json").data["outputs"]
    made = katz("run", foreign, "--packs", packs, "--json")
    (identifier,) = (
        name
        for name, node in json.loads(foreign.read_text()).items()
        if node["class_type"] == "Guide"
    )
    assert [line for line in made.err.splitlines() if line.startswith("call")] == [
        f"call {n} of {identifier}" for n in (1, 2, 3)
    ]
    pictures = [np.asarray(Image.open(path)) for path in (*expected, *made.data["outputs"])]
    assert len(pictures) == 2 and np.array_equal(*pictures)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{{'result': {COMBINED}, 'ui': {{'text': ['seen by nobody']}}}}", None),
        (
            "{'result': ([None],), 'expand': {'a': {'class_type': 'X', 'inputs': {}}}}",
            "expands to a graph",
        ),
        ("(ExecutionBlocker('no'),)", "blocks its readers"),
        ("(_ for _ in ()).throw(Cancelled('cancelled'))", "error: cancelled"),
        ("[][1]", "IndexError: list index out of range"),
        ("None", "returned nothing"),
    ],
)
def test_results_are_accepted_or_refused_by_name(
    katz: Katz, tmp_path: Path, body: str, expected: str | None
) -> None:
    _, foreign, packs = guided_by_pack(tmp_path, body, steps=1)
    result = katz("run", foreign, "--packs", packs)
    if expected is None:
        assert result.code == 0
    elif expected == "error: cancelled":
        assert (result.code, result.errors) == (130, [expected])
    else:
        assert (
            result.code in (1, 2)
            and "(Guide): " in result.errors[0]
            and expected in result.errors[0]
        ), result.errors
