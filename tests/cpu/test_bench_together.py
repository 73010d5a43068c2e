"""A random group of requests; `katz bench together --part groups` runs 200 of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from katz_graph.bench.command import run_bench
from katz_graph.bench.random_groups import MET, Groups, result
from katz_graph.bench.random_members import Group
from katz_graph.core.errors import InputError

SEED = 4214  # a small group with an SD3-shaped model, in which all of MET happens


def at_once(group: Group) -> Group:
    """Lets the requests start together, and kills a worker at the first call that they share."""
    members = [replace(member, delay=0.0) for member in group.members]
    return replace(group, members=members, killed_after=1)


def test_requests_of_a_random_group_get_the_pictures_of_lone_ones(
    tmp_path: Path, costs: Path
) -> None:
    with Groups(tmp_path, costs) as groups:
        found = groups.run(SEED, at_once)
    assert found.holds, found
    assert {what for what in MET if found.met[what]} == {*MET}
    moved = replace(found, differences=found.differences | {"fixed": 1e-9})
    assert result([moved]).metrics["failing_seeds"] == [SEED]
    with pytest.raises(InputError, match="--part rows: expected one of speed, poisson, groups"):
        run_bench("together", as_json=False, part="rows")
