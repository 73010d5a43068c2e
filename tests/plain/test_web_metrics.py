"""Prometheus metrics time the evaluations of samplers, and no other progress."""

from __future__ import annotations

from prometheus_client import generate_latest

from katz_graph.core.events import Progress
from katz_graph.web.events import PlanMade
from katz_graph.web.metrics import Metrics


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_evaluation_is_timed_even_if_not_reported_singly() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    for now, value in ((0.0, 1), (0.2, 2), (0.6, 6)):
        clock.now = now
        metrics.on_event("j", Progress("3", value, 20, evaluations=True))
    text = generate_latest(metrics.registry).decode()
    assert (
        'katz_step_seconds_bucket{le="0.25"} 5.0' in text and "katz_step_seconds_count 5.0" in text
    )
    assert 'katz_step_seconds_bucket{le="0.1"} 4.0' in text  # the four that shared 0.4 s


def test_planned_seconds_are_counted_for_the_measured_evaluations() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    plan = {"prediction": {"evaluation_seconds": [0.9, 0.5, 1.5, 1.5]}}
    metrics.on_event("j", PlanMade("3", plan))
    for value in range(1, 5):
        clock.now += 1.0
        metrics.on_event("j", Progress("3", value, 4, evaluations=True))
    text = generate_latest(metrics.registry).decode()
    # the first report begins the measurement
    assert "katz_step_seconds_sum 3.0" in text and "katz_step_predicted_seconds_total 3.5" in text


def test_progress_of_a_pack_is_not_counted_as_evaluations() -> None:
    clock = Clock()
    metrics = Metrics(clock)
    for value in (1, 2**40):
        clock.now += 1.0
        metrics.on_event("j", Progress("3", value, 2**41))
    assert "katz_step_seconds_count 0.0" in generate_latest(metrics.registry).decode()
