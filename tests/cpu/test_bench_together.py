"""A few random groups of requests; `katz bench together --part groups` runs 200 of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from katz_graph.bench.command import run_bench
from katz_graph.bench.random_groups import MET, Groups, result
from katz_graph.core.errors import InputError

SEEDS = 2385, 2146  # small groups of SD3- and FLUX-shaped models, in which all of MET happens


def test_requests_of_random_groups_get_the_pictures_of_lone_ones(
    tmp_path: Path, costs: Path
) -> None:
    with Groups(tmp_path, costs) as groups:
        found = [groups.run(seed) for seed in SEEDS]
    assert all(group.holds for group in found), found
    assert {what for group in found for what in MET if group.met[what]} == {*MET}
    moved = replace(found[0], differences=found[0].differences | {"fixed": 1e-9})
    assert result([moved]).metrics["failing_seeds"] == [SEEDS[0]]
    with pytest.raises(InputError, match="--part rows: expected one of speed, poisson, groups"):
        run_bench("together", as_json=False, part="rows")
