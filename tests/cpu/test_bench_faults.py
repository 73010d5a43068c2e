"""`katz bench faults` evaluates its observations correctly; tests/cluster makes them with real
workers.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from katz_graph.bench import faults, faults_on_ray
from katz_graph.bench.result import BenchResult
from katz_graph.testing.worker_faults import FaultTiming, Undisturbed

GOOD = (
    FaultTiming("SIGKILL", "cpu:0", 0.05, 1.0, 2, 0.0),
    FaultTiming("SIGKILL", "cpu:1", 0.25, 0.75, 2, 0.0),
    FaultTiming("SIGSTOP", "cpu:0", 2.5, 3.0, 2, 0.0),
    FaultTiming("SIGSTOP", "cpu:0", 3.5, 4.0, 2, 0.0),
)
ALONE = Undisturbed(9, 1, 0.0)


def seen(
    monkeypatch: pytest.MonkeyPatch,
    *timings: FaultTiming,
    undisturbed: Undisturbed = ALONE,
    ray: bool = False,
) -> BenchResult:
    def engine(*_: Any, **__: Any) -> Any:
        return nullcontext()

    monkeypatch.setattr(faults, "DeviceEngine", engine)
    monkeypatch.setattr(faults, "inject_faults", lambda *_: (list(timings), undisturbed))
    monkeypatch.setattr(faults_on_ray, "can_run", lambda: ray)
    monkeypatch.setattr(
        faults_on_ray,
        "in_namespaces",
        lambda *_: [*GOOD, FaultTiming("SIGKILL", "ray:1", 0.5, 4.5, 2, 0.0)],
    )
    return faults.run()


def test_the_slowest_counts_and_the_table_has_a_row_for_each_kind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    result = seen(monkeypatch, *GOOD, ray=True)
    assert result.ok
    assert result.metrics["requests"] == 9
    assert (result.metrics["spawn_noticed_killed"], result.metrics["spawn_noticed_frozen"]) == (
        0.25,
        3.5,
    )
    assert (result.metrics["spawn_recovered"], result.metrics["ray_recovered"]) == (4.0, 4.5)
    assert (
        result.bounds["ray_noticed_frozen"] == "<= 5"
        and result.bounds["spawn_difference"] == "<= 0"
    )
    assert result.table[:3] == [
        ["spawn, SIGKILL, base", 0.05, 0.05, 1.0, 1.0],
        ["spawn, SIGKILL, ControlNet", 0.25, 0.25, 0.75, 0.75],
        ["spawn, SIGSTOP, base", 3.0, 3.5, 3.5, 4.0],
    ]


@pytest.mark.parametrize(
    "worse",
    [
        FaultTiming("SIGKILL", "cpu:1", 1.1, 1.2, 2, 0.0),
        FaultTiming("SIGSTOP", "cpu:1", 2.5, 5.1, 2, 0.0),
        FaultTiming("SIGSTOP", "cpu:1", 2.5, 3.0, 3, 0.0),
        FaultTiming("SIGSTOP", "cpu:1", 2.5, 3.0, 2, 1e-7),
    ],
)
def test_one_that_is_late_or_has_another_picture_is_too_many(
    monkeypatch: pytest.MonkeyPatch, worse: FaultTiming
) -> None:
    assert not seen(monkeypatch, *GOOD, worse).ok


@pytest.mark.parametrize("undisturbed", [Undisturbed(9, 2, 0.0), Undisturbed(9, 1, 1e-7)])
def test_a_disturbed_neighbour_is_too_many(
    monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed
) -> None:
    assert not seen(monkeypatch, *GOOD, undisturbed=undisturbed).ok
