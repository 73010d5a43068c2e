"""Jobs get all devices while load is low, and one each while it is high, in a small simulation."""

from __future__ import annotations

from katz_graph.bench import devices
from katz_graph.core.devices import BY_LOAD


def test_jobs_are_faster_at_low_load_and_not_slower_at_high_load() -> None:
    result = devices.run(simulate=True, jobs=300)
    assert result.ok, result.metrics


def test_predictions_may_be_wrong_by_a_factor_of_five() -> None:
    jobs = devices.poisson_jobs(0.9, 500, seed=1)
    one = devices.served(jobs, 1)
    for prediction in (0.2, 5.0):
        assert devices.served(jobs, BY_LOAD, prediction) <= 1.03 * one
