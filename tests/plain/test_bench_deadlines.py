"""Earliest due first meets more due times than first come and equal shares, in a small simulation."""

from __future__ import annotations

import re
from typing import Any

import pytest

from katz_graph.bench import deadlines
from katz_graph.bench.command import run_bench
from katz_graph.bench.deadlines import Scale
from katz_graph.bench.deadlines_server import Found
from katz_graph.core.errors import InputError


def test_due_times_and_shared_calls_keep_the_bounds_of_a_small_simulation() -> None:
    result = deadlines.run(simulate=True, scale=Scale(jobs=600, loads=(1.1,), traces=1))
    figures = result.metrics
    assert result.ok, figures
    assert figures["first_come_at_1.1"] < figures["equal_shares_at_1.1"] < 0.5
    assert figures["alone_at_1.1"] < figures["shared_at_1.1"]


def test_a_server_is_judged_by_the_bounds_of_what_was_measured() -> None:
    real = {("first come", 1.1): 0.4, ("shared", 1.1): 0.93}
    simulated = {("first come", 1.1): 0.36, ("shared", 1.1): 0.97, ("scattered", 1.1): 0.9}
    result = deadlines._judged(Found(real, simulated, {"share_without_due": 0.09}))
    assert result.ok, result.metrics
    assert result.metrics["simulation_error"] == pytest.approx(0.04)
    assert result.metrics["gain_over_first_come"] == pytest.approx(0.53)
    assert result.metrics["scattered_over_exact"] == pytest.approx(-0.07)
    assert set(result.bounds) == {
        *("shared_at_1.1", "gain_over_first_come", "scattered_over_exact"),
        *("share_without_due", "simulation_error"),
    }
    assert not deadlines._judged(Found(real, simulated, {"call_error_p95": 0.2})).ok
    assert not deadlines._judged(Found(real | {("shared", 1.1): 0.9}, simulated)).ok


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loads": "0.9,fast"}, "--loads 0.9,fast: expected numbers above 0"),
        ({"loads": "0"}, "--loads 0: expected numbers above 0"),
        (
            {"part": "alone,first"},
            "--part first: expected some of first come, alone, shared, turns",
        ),
        ({"part": "alone", "simulate": True}, "--part: a simulation has no parts"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        deadlines.run(**options)


def test_other_benches_simulate_nothing() -> None:
    with pytest.raises(InputError, match="--simulate: bench trace simulates nothing"):
        run_bench("trace", as_json=False, simulate=True)
