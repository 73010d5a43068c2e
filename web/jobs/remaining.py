"""Describes the rest of a job as parts of a simulated request, from its samplers' progress and
plans and from earlier jobs of its shape. Pure arithmetic.

The parts of a job with one sampler are: work of the host and of devices before it, its evaluations,
which other jobs may share, and work of devices and of the host after it. The seconds around the
sampler are those of earlier jobs of the shape, of jobs that ran alone if there are any, because
those of others include waiting.

Other jobs, such as those with several samplers or several devices, are one part: the sampler's
rest, which is its remaining evaluations by the plan's seconds for each kind of evaluation, times
the median pace of the last ones, and the median time after it of earlier jobs of the shape. In a
new shape, the time after the last sampler is its median ratio to the time before, in recent jobs;
the time after others is the rest of the prediction for the whole job.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

from katz_graph.core.events import Progress
from katz_graph.ir.device import ROW_BUCKETS, interpolated
from katz_graph.serving.simulator import Calls
from katz_graph.web.events import ClientEvent, PlanMade
from katz_graph.web.jobs.job import Job, JobFeatures

PACE_REPORTS = 20  # progress reports from which the pace of a sampler is computed
TOGETHER_S = 0.001  # reports that arrive within this time count as one
MAX_PLANS = 32  # plans of a job that are stored
SAME_SHAPE = 5  # stored samples of one shape; their median is the prediction
SHAPES = 1_000
UNITS = 20  # of work that devices can leave in between
KEYS = 1_000  # of evaluations, whose seconds are stored
JOBS = 100  # ended jobs whose predictions are compared with the measured seconds
OVERDUE = 0.1  # share of the predicted time that overdue work is assumed to still need


def left(predicted: float, elapsed: float) -> float:
    """Estimates the remaining seconds of work that has run for a time."""
    return max(predicted - elapsed, OVERDUE * predicted)


def undivided(seconds: float) -> tuple[Calls, ...]:
    """Returns work of which no parts are known; devices may serve other jobs in between."""
    return (Calls(None, UNITS, own=seconds / UNITS),)


def evaluation_seconds(plan: Mapping[str, Any]) -> Sequence[float]:
    """Returns the planned seconds of each evaluation of a sampler; empty if the plan lacks them."""
    prediction = plan.get("prediction") or {}
    seconds: Sequence[float] = prediction.get("evaluation_seconds", ())
    return seconds


@dataclass(frozen=True, slots=True)
class SamplerPlan:
    """A sampler's plan: the seconds of its first n evaluations, its evaluations as parts of a
    request if other requests may share all of them, and the device that advances it.
    """

    sums: Sequence[float]
    evaluations: tuple[Calls, ...]
    device: str

    @classmethod
    def read(cls, plan: Mapping[str, Any]) -> SamplerPlan:
        runs = (plan.get("prediction") or {}).get("evaluations", ())
        calls = tuple(Calls(run["key"], run["number"], run["rows"]) for run in runs)
        sums = list(accumulate(evaluation_seconds(plan), initial=0.0))
        shared = calls if all(one.key for one in calls) else ()
        return cls(sums, shared, plan.get("owner", ""))

    def rest(self, done: int, count: int) -> tuple[Calls, ...]:
        """Returns the evaluations after the first `done` of `count`; none if the plan has another
        number.
        """
        if sum(calls.number for calls in self.evaluations) != count:
            return ()
        found = []
        for calls in self.evaluations:
            skipped = min(done, calls.number)
            done -= int(skipped)
            if calls.number > skipped:
                found.append(Calls(calls.key, calls.number - skipped, calls.rows))
        return tuple(found)


@dataclass(slots=True)
class JobProgress:
    """Accumulates the progress of a running job."""

    plans: dict[str, SamplerPlan] = field(default_factory=dict)
    sampler: str = ""  # the latest one
    done: int = 0  # evaluations
    count: int = 0
    # of the latest sampler: time of a report, planned seconds of the evaluations until then
    reports: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PACE_REPORTS))
    first: tuple[float, int] | None = None  # time of the first report, evaluations done by then
    ends: dict[str, float] = field(default_factory=dict)  # time of a sampler's last evaluation
    # when about half of the job was done: time, predicted remaining seconds (None: not predicted)
    half: tuple[float, float | None] | None = None

    def on_event(self, event: ClientEvent, now: float) -> None:
        match event:
            case PlanMade(node=node, plan=plan):
                self.plans[node] = SamplerPlan.read(plan)
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
                self.first = self.first or (now, event.value)
                if event.value >= event.maximum:
                    self.ends[event.node] = now

    def _planned(self, evaluations: int) -> float:
        """Returns the planned seconds of the first evaluations, in any unit: without a plan all
        take equally long.
        """
        plan = self.plans.get(self.sampler)
        known = plan is not None and len(plan.sums) == self.count + 1
        return plan.sums[evaluations] if plan is not None and known else float(evaluations)

    @property
    def shared(self) -> tuple[Calls, ...]:
        """Returns the remaining evaluations of the sampler if other requests may share them."""
        plan = self.plans.get(self.sampler)
        if plan is None or not self.reports or self.done >= self.count:
            return ()
        return plan.rest(self.done, self.count)

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


@dataclass(frozen=True, slots=True)
class Around:
    """Seconds of a job with one sampler: of the host and of devices before it and after it."""

    alone: bool  # no other job ran
    before: float
    prepared: float
    decoded: float
    after: float


class _Shape:
    """Learns from the jobs of a shape. `tails`: by sampler, the seconds from its last evaluation to
    the end of the job.
    """

    def __init__(self) -> None:
        self.tails: dict[str, deque[float]] = {}
        self.evaluations: tuple[Calls, ...] = ()  # of the latest job, if it has one sampler
        self._around: deque[Around] = deque(maxlen=SAME_SHAPE)
        self._alone: deque[Around] = deque(maxlen=SAME_SHAPE)

    def learn(self, evaluations: tuple[Calls, ...], around: Around) -> None:
        self.evaluations = evaluations
        (self._alone if around.alone else self._around).append(around)

    def before(self, elapsed: float) -> tuple[Calls, ...]:
        """Returns the parts before the sampler of a job that has run for a time."""
        host = (
            left(self._host(lambda one: one.before), elapsed)
            if elapsed
            else self._host(lambda one: one.before)
        )
        return Calls(None, 1, 0, host), Calls(None, 1, 1, self._devices(lambda one: one.prepared))

    def after(self, elapsed: float = 0.0) -> tuple[Calls, ...]:
        """Returns the parts after the sampler, which ended before some seconds."""
        decoded, host = self._devices(lambda one: one.decoded), self._host(lambda one: one.after)
        if elapsed:
            host = left(host, max(elapsed - decoded, 0.0))
        return Calls(None, 1, 1, max(decoded - elapsed, 0.0)), Calls(None, 1, 0, host)

    def seconds_after(self) -> Mapping[str, float]:
        """Returns the seconds after the last evaluation of each sampler, by node."""
        if self.evaluations:
            return dict.fromkeys(self.tails, sum(calls.own for calls in self.after()))
        return {sampler: statistics.median(tails) for sampler, tails in self.tails.items()}

    def _host(self, seconds: Callable[[Around], float]) -> float:
        return statistics.median(map(seconds, self._alone or self._around))

    def _devices(self, seconds: Callable[[Around], float]) -> float:
        return statistics.median(map(seconds, (*self._alone, *self._around)))


class RunningJobs:
    """Tracks the running jobs by id, and learns the time around samplers from those that ended."""

    def __init__(self) -> None:
        self._jobs: dict[str, JobProgress] = {}
        self._shapes: dict[str, _Shape] = {}
        # of recent jobs: time after the last evaluation / time until then
        self._shares: deque[float] = deque(maxlen=JOBS)
        # seconds of an evaluation by its key and ROW_BUCKETS, as in the latest plan
        self._seconds: dict[str, Mapping[int, float]] = {}
        self._predicted = self._measured = 0.0
        self._errors: deque[float] = deque(maxlen=JOBS)

    def on_event(self, id: str, event: ClientEvent, now: float) -> None:
        self._jobs.setdefault(id, JobProgress()).on_event(event, now)
        if isinstance(event, PlanMade):
            for run in (event.plan.get("prediction") or {}).get("evaluations", ()):
                if run["key"]:
                    self._seconds.pop(run["key"], None)
                    by_rows = dict(zip(ROW_BUCKETS, run["seconds_by_rows"], strict=True))
                    self._seconds[run["key"]] = by_rows
            while len(self._seconds) > KEYS:
                del self._seconds[next(iter(self._seconds))]

    def seconds_of(self, key: Hashable, rows: int) -> float:
        """Returns the seconds of an evaluation, of more rows than known in proportion."""
        known = self._seconds.get(str(key), {})
        most = max(known, default=1)
        found = interpolated(min(rows, most), known)
        return (found or 0.0) * max(1.0, rows / most)

    def device(self, id: str) -> str:
        """Returns the device that advances a job's sampler; empty if it is not known yet."""
        progress = self._jobs.get(id)
        plans = () if progress is None else tuple(progress.plans.values())
        return plans[-1].device if plans else ""

    def left(
        self,
        id: str,
        features: JobFeatures,
        predicted: float | None,
        elapsed: float,
        now: float,
        lone: bool = False,
    ) -> tuple[Calls, ...] | None:
        """Returns the rest of a job; None if nothing is known. `predicted`: seconds of the
        whole job; `elapsed`: since its start. `lone`: no other job runs or waits, so that the
        pace of the job's last reports tells most.
        """
        progress = self._jobs.get(id) or JobProgress()
        shape = self._shapes.get(features.shape)
        if shape is not None and all(calls.key in self._seconds for calls in shape.evaluations):
            if not progress.sampler and shape.evaluations:
                before = shape.before(elapsed)
                # the host has planned the sampler before devices prepare it
                return (
                    *(before[1:] if progress.plans else before),
                    *shape.evaluations,
                    *shape.after(),
                )
            if shape.evaluations and (rest := progress.shared):
                if lone and (sampling := progress.sampling) is not None:
                    rest = undivided(left(sampling[1], now - sampling[0]))
                return (*rest, *shape.after())
            if shape.evaluations and progress.sampler in progress.ends:
                return shape.after(now - progress.ends[progress.sampler])
        seconds = self._seconds_left(progress, features, predicted, elapsed, now)
        return None if seconds is None else undivided(seconds)

    def _seconds_left(
        self,
        progress: JobProgress,
        features: JobFeatures,
        predicted: float | None,
        elapsed: float,
        now: float,
    ) -> float | None:
        shape = self._shapes.get(features.shape)
        tails = () if shape is None else shape.tails.get(progress.sampler, ())
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

    def seconds_after(self, features: JobFeatures) -> Mapping[str, float]:
        """Returns the seconds after the last evaluation of each sampler of a job, by node, from
        earlier jobs of its shape.
        """
        shape = self._shapes.get(features.shape)
        return {} if shape is None else shape.seconds_after()

    def is_half_done(self, id: str, alone: float, elapsed: float) -> bool:
        """Returns whether about half of a job may be done, and no prediction was noted then.
        `alone`: remaining seconds if no other job ran.
        """
        progress = self._jobs.get(id)
        return (
            progress is not None
            and progress.half is None
            and bool(progress.shared or progress.sampling)
            and elapsed >= alone
        )

    def note(self, id: str, remaining: float | None, now: float) -> None:
        """Stores the prediction to be compared, when about half of the job is done. None: this job
        is not compared.
        """
        self._jobs[id].half = now, remaining

    def forget(self, id: str) -> None:
        """Forgets an attempt of a job."""
        self._jobs.pop(id, None)

    def ended(self, job: Job, shape: str) -> None:
        """Learns from a completed job."""
        progress, at = self._jobs.pop(job.id, None), job.ended
        if progress is None or at is None:
            return
        started = job.started or at
        known = self._shapes[shape] = self._shapes.pop(shape, _Shape())
        for sampler, end in progress.ends.items():
            tails = known.tails.setdefault(sampler, deque(maxlen=SAME_SHAPE))
            tails.append(max(0.0, at - end))
        last = max(progress.ends.values(), default=started)
        if started < last <= at:
            self._shares.append((at - last) / (last - started))
            self._learn(known, job, progress, started, at)
        if len(self._shapes) > SHAPES:
            del self._shapes[next(iter(self._shapes))]
        half, predicted = progress.half or (at, None)
        if predicted is not None and at > half:
            measured = at - half
            self._predicted += predicted
            self._measured += measured
            self._errors.append(abs(predicted / measured - 1))

    def _learn(
        self, shape: _Shape, job: Job, progress: JobProgress, started: float, at: float
    ) -> None:
        """Learns the parts of a job with one sampler, whose evaluations other jobs may share."""
        plan, first = progress.plans.get(progress.sampler), progress.first
        if len(progress.ends) != 1 or plan is None or first is None or job.result is None:
            return
        if not (evaluations := plan.rest(0, progress.count)):
            return
        seconds = job.result.seconds
        alone = sum(calls.number * self.seconds_of(calls.key, calls.rows) for calls in evaluations)
        began = first[0] - started - alone * first[1] / progress.count
        after = at - progress.ends[progress.sampler]
        prepared = min(seconds.get("prepare", 0.0) + seconds.get("load", 0.0), max(began, 0.0))
        decoded = min(seconds.get("vae", 0.0), after)
        shape.learn(
            evaluations,
            Around(job.alone, max(began - prepared, 0.0), prepared, decoded, after - decoded),
        )

    @property
    def accuracy(self) -> Accuracy:
        error = statistics.median(self._errors) if self._errors else None
        return Accuracy(self._predicted, self._measured, error)
