"""The bench of recorded calls passes."""

from __future__ import annotations

from katz_graph.bench import recorded
from katz_graph.testing.placement import Scale


def test_switching_causes_no_new_recording_and_changes_no_byte() -> None:
    result = recorded.run(
        Scale(channels=(32, 32, 64), side=8, steps=2, runs=2, layers=1), switches=4
    )
    assert result.ok, result.metrics
    assert result.metrics["captures"] > 0 and result.metrics["miniature_recordings"] > 0
    assert min(row[1] for row in result.table) > 0
