"""Predicts the remaining seconds of a running job from its samplers' progress. Pure arithmetic.

A sampler's rest is its remaining evaluations, by the plan's seconds for each kind of evaluation,
times the median pace of the last ones: a job that waited while devices served others does not have
to wait again. The time after it is the median of earlier jobs of the
same shape. In a new shape, the time after the last sampler is its median ratio to the time before,
in recent jobs; the time after others is the rest of the prediction for the whole job.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from katz_graph.core.events import Progress
from katz_graph.web.events import ClientEvent, PlanMade
from katz_graph.web.jobs.job import JobFeatures

PACE_REPORTS = 20  # progress reports from which the pace of a sampler is computed
TOGETHER_S = 0.001  # reports that arrive within this time count as one
MAX_PLANS = 32  # plans of a job that are stored
SAME_SHAPE = 5  # stored samples of one shape; their median is the prediction
SHAPES = 1_000
JOBS = 100  # ended jobs whose predictions are compared with the measured seconds
OVERDUE = 0.1  # share of the predicted time that overdue work is assumed to still need


def left(predicted: float, elapsed: float) -> float:
    """Estimates the remaining seconds of work that has run for a time."""
    return max(predicted - elapsed, OVERDUE * predicted)


def evaluation_seconds(plan: Mapping[str, Any]) -> Sequence[float]:
    """Returns the planned seconds of each evaluation of a sampler; empty if the plan lacks them."""
    prediction = plan.get("prediction") or {}
    seconds: Sequence[float] = prediction.get("evaluation_seconds", ())
    return seconds


@dataclass(slots=True)
class JobProgress:
    """Accumulates the progress of a running job."""

    # by sampler: the planned seconds of its first n evaluations
    plans: dict[str, Sequence[float]] = field(default_factory=dict)
    sampler: str = ""  # the latest one
    done: int = 0  # evaluations
    count: int = 0
    # of the latest sampler: time of a report, planned seconds of the evaluations until then
    reports: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PACE_REPORTS))
    ends: dict[str, float] = field(default_factory=dict)  # time of a sampler's last evaluation
    # when about half of the job was done: time, predicted remaining seconds
    half: tuple[float, float] | None = None

    def on_event(self, event: ClientEvent, now: float) -> None:
        match event:
            case PlanMade(node=node, plan=plan):
                self.plans[node] = list(accumulate(evaluation_seconds(plan), initial=0.0))
                if len(self.plans) > MAX_PLANS:
                    del self.plans[next(iter(self.plans))]
            case Progress(evaluations=True):
                if event.node != self.sampler or event.value < self.done:
                    self.sampler = event.node
                    self.reports.clear()
                elif self.reports and now - self.reports[-1][0] < TOGETHER_S:
                    self.reports.pop()
                self.done, self.count = event.value, event.maximum
                self.reports.append((now, self._planned(event.value)))
                if event.value >= event.maximum:
                    self.ends[event.node] = now

    def _planned(self, evaluations: int) -> float:
        """Returns the planned seconds of the first evaluations, in any unit: without a plan all
        take equally long.
        """
        sums = self.plans.get(self.sampler, ())
        return sums[evaluations] if len(sums) == self.count + 1 else float(evaluations)

    @property
    def sampling(self) -> tuple[float, float] | None:
        """Returns the time of the sampler's last report and its remaining seconds then; None if no
        pace was measured, or the sampler has ended.
        """
        paces = [
            (now - since) / (until - before)
            for (since, before), (now, until) in pairwise(self.reports)
            if now > since and until > before
        ]
        if not paces or self.done >= self.count:
            return None
        last, until = self.reports[-1]
        return last, (self._planned(self.count) - until) * statistics.median(paces)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Compares the remaining seconds of jobs, predicted at about half of their time, with the
    measured ones: sums over all jobs, and the median relative error of the last ones.
    """

    predicted: float = 0.0
    measured: float = 0.0
    error: float | None = None


class RunningJobs:
    """Tracks the running jobs by id, and learns the time after samplers from those that ended."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobProgress] = {}
        # shape -> sampler -> seconds from its last evaluation to the end of the job
        self._tails: dict[str, dict[str, deque[float]]] = {}
        # of recent jobs: time after the last evaluation / time until then
        self._shares: deque[float] = deque(maxlen=JOBS)
        self._predicted = self._measured = 0.0
        self._errors: deque[float] = deque(maxlen=JOBS)

    def on_event(self, id: str, event: ClientEvent, now: float) -> None:
        self._jobs.setdefault(id, JobProgress()).on_event(event, now)

    def left(
        self, id: str, features: JobFeatures, predicted: float | None, elapsed: float, now: float
    ) -> float | None:
        """Returns a job's remaining seconds; None if nothing is known. `predicted`: those of the
        whole job; `elapsed`: since its start.
        """
        progress = self._jobs.get(id) or JobProgress()
        tails = self._tails.get(features.shape, {}).get(progress.sampler)
        tail = statistics.median(tails) if tails else None
        if (sampling := progress.sampling) is not None:
            last, rest = sampling
            if tail is None:
                tail = self._tail(progress, features, predicted, elapsed - (now - last) + rest)
            return left(rest, now - last) + tail
        if tail is not None and progress.sampler in progress.ends:
            return left(tail, now - progress.ends[progress.sampler])
        return None if predicted is None else left(predicted, elapsed)

    def _tail(
        self, progress: JobProgress, features: JobFeatures, predicted: float | None, until: float
    ) -> float:
        """Estimates the seconds after a sampler of a new shape that ends `until` seconds after the
        job's start.
        """
        if self._shares and len({*progress.ends, progress.sampler}) >= features.samplers:
            return statistics.median(self._shares) * until
        return max(0.0, (predicted or 0.0) - until)

    def note(self, id: str, remaining: float | None, elapsed: float, now: float) -> None:
        """Stores the prediction to be compared, once about half of the job is done."""
        progress = self._jobs.get(id)
        if progress is None or progress.half is not None or progress.sampling is None:
            return
        if remaining is not None and elapsed >= remaining:
            progress.half = now, remaining

    def forget(self, id: str) -> None:
        """Forgets an attempt of a job."""
        self._jobs.pop(id, None)

    def ended(self, id: str, shape: str, started: float, at: float) -> None:
        """Learns from a completed job."""
        progress = self._jobs.pop(id, None)
        if progress is None:
            return
        tails = self._tails[shape] = self._tails.pop(shape, {})
        for sampler, ended in progress.ends.items():
            tails.setdefault(sampler, deque(maxlen=SAME_SHAPE)).append(max(0.0, at - ended))
        last = max(progress.ends.values(), default=started)
        if started < last <= at:
            self._shares.append((at - last) / (last - started))
        if len(self._tails) > SHAPES:
            del self._tails[next(iter(self._tails))]
        if progress.half is not None and at > progress.half[0]:
            measured = at - progress.half[0]
            self._predicted += progress.half[1]
            self._measured += measured
            self._errors.append(abs(progress.half[1] / measured - 1))

    @property
    def accuracy(self) -> Accuracy:
        error = statistics.median(self._errors) if self._errors else None
        return Accuracy(self._predicted, self._measured, error)
