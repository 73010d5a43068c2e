"""Earliest due first meets more due times than first come and equal shares, in a small simulation."""

from __future__ import annotations

import pytest

from katz_graph.bench import deadlines
from katz_graph.bench.command import run_bench
from katz_graph.bench.deadlines import Scale
from katz_graph.core.errors import InputError


def test_due_times_and_shared_calls_keep_the_bounds_of_a_small_simulation() -> None:
    result = deadlines.run(simulate=True, scale=Scale(jobs=600, loads=(1.1,), traces=1))
    figures = result.metrics
    assert result.ok, figures
    assert figures["first_come_at_1.1"] < figures["equal_shares_at_1.1"] < 0.5
    assert figures["alone_at_1.1"] < figures["shared_at_1.1"]


def test_other_benches_simulate_nothing() -> None:
    with pytest.raises(InputError, match="--simulate: bench trace simulates nothing"):
        run_bench("trace", as_json=False, simulate=True)
