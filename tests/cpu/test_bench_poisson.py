"""A few arrivals of `katz bench together --part poisson`."""

from __future__ import annotations

from pathlib import Path

from katz_graph.bench.poisson import Arrivals, compare
from katz_graph.core.shared_rows import SharedRows
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import local_engine, sampler_region


def test_only_one_of_two_workers_shares_the_calls_of_the_same_arrivals(
    sd1: Models, costs: Path
) -> None:
    regions = [sampler_region(Case("a", sd1.pipeline, "euler", 2, seed=seed)) for seed in (1, 2)]
    with (
        local_engine(cache=costs) as plain,
        local_engine(cache=costs, shared_rows=SharedRows(8)) as shared,
    ):
        found = compare(shared, plain, regions, Arrivals(jobs=6, measured=4))
        assert shared.models.compute.use.shared > plain.models.compute.use.shared == 0
    assert found.metrics.keys() == found.bounds.keys() == {"poisson_mean", "poisson_p95"}
