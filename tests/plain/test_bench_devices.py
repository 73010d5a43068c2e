"""Jobs get all devices while load is low, and one each while it is high, in a small simulation."""

from __future__ import annotations

from katz_graph.bench import devices


def test_jobs_are_faster_at_low_load_and_not_slower_at_high_load() -> None:
    result = devices.run(simulate=True, jobs=300)
    assert result.ok, result.metrics
