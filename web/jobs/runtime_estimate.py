"""Predicts the run times of jobs from finished jobs: from jobs of the same shape, or else from the
samplers' work. Pure arithmetic.

A shape is a graph without the inputs that hardly affect its time: seeds, texts and file names. Work
is evaluations x pixels x pictures.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from katz_graph.serving.policy import ReservedTime, can_meet
from katz_graph.web.events import ClientEvent
from katz_graph.web.jobs.job import Job, JobFeatures
from katz_graph.web.jobs.records import as_text
from katz_graph.web.jobs.remaining import SAME_SHAPE, SHAPES, Accuracy, RunningJobs, left

SEEDS = ("seed", "noise_seed", "control_after_generate")
# inputs with such a name, or `..._<name>`, `<name>_...`
TEXTS = ("text", "prompt", "negative", "positive", "prefix", "image", "title", "value")
MIN_TEXT_CHARACTERS = 200  # characters; longer strings are texts, never choices
RECENT = 100  # jobs of any shape used to fit seconds to work
UNKNOWN = 10.0  # predicted seconds of a job before any sample exists
PIXELS = 512 * 512  # of a picture without a size in the graph
STEPS = 20  # of a sampler with steps from another node


def features_of(prompt: Mapping[str, Any], targets: Sequence[str]) -> JobFeatures:
    """Computes the features of a graph in API format."""
    shape = {
        node: [entry.get("class_type"), _lasting(_inputs(entry))] for node, entry in prompt.items()
    }
    text = as_text([sorted(targets), sorted(shape.items())])
    sizes = _sizes(prompt)
    samplers = {node: inputs for node in prompt if "steps" in (inputs := _inputs(prompt[node]))}
    work = sum(_work(inputs, sizes[node]) for node, inputs in samplers.items())
    return JobFeatures(hashlib.sha256(text.encode()).hexdigest(), work, len(samplers))


class Predictor:
    """Predicts seconds from jobs that completed."""

    def __init__(self) -> None:
        self._shapes: dict[str, deque[float]] = {}
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT)
        # (seconds per work, fixed seconds); None: the fit is outdated
        self._line: tuple[float, float] | None = None

    def learn(self, features: JobFeatures, seconds: float) -> None:
        """Adds a job's measured seconds."""
        samples = self._shapes.pop(features.shape, None) or deque(maxlen=SAME_SHAPE)
        samples.append(seconds)
        self._shapes[features.shape] = samples
        if len(self._shapes) > SHAPES:
            del self._shapes[next(iter(self._shapes))]
        self._recent.append((features.work, seconds))
        self._line = None

    @property
    def known(self) -> bool:
        """Returns whether there are samples."""
        return bool(self._recent)

    def of_shape(self, features: JobFeatures) -> float | None:
        """Predicts the seconds of a job from jobs of its shape; None without such samples."""
        same = self._shapes.get(features.shape)
        return None if same is None else statistics.median(same)

    def seconds(self, features: JobFeatures) -> float | None:
        """Predicts the seconds of a job, or None without samples."""
        if (same := self.of_shape(features)) is not None:
            return same
        if not self._recent:
            return None
        slope, start = self._line = self._line or _line(self._recent)
        return start + slope * features.work


def learned(job: Job, features: JobFeatures) -> float | None:
    """Returns the seconds of a completed job as a sample, or None if it did not complete or its
    samplers' results were cached.
    """
    result = job.result
    if result is None or result.status != "completed" or job.started is None or job.ended is None:
        return None
    cached = features.work > 0 and result.seconds.get("denoise", 1.0) <= 0
    if cached:
        return None
    # if jobs share a device, a job's duration includes the time of others
    known = job.device_seconds
    return max(0.0, job.ended - job.started) if known is None else known


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job: its predicted seconds, and the seconds until it is due (inf: never)."""

    seconds: float
    due: float = math.inf
    taken: bool = False  # the runner has it already


def starts(slots: int, running: Iterable[float], waiting: Sequence[Waiting]) -> list[float]:
    """Simulates the queue on `slots` groups of devices. `running` are the remaining seconds of
    running jobs, `waiting` the jobs in the order of the queue; jobs that become late go behind the
    others. Returns the seconds until each waiting job starts, and last, until one more job would
    start.
    """
    free = [0.0] * slots
    for seconds in sorted(running, reverse=True):
        heapq.heapreplace(free, free[0] + seconds)
    times = [0.0] * len(waiting)
    taken, due, without_due, late = (deque[int]() for _ in range(4))
    for number, job in enumerate(waiting):
        (taken if job.taken else due if job.due < math.inf else without_due).append(number)
    reserved = ReservedTime()
    for _ in waiting:
        now = free[0]
        while not taken and due and not can_meet(waiting[due[0]].due, waiting[due[0]].seconds, now):
            late.append(due.popleft())
        others_first = reserved.comes_first(bool(due and not taken), bool(without_due))
        ready = taken or (due if due and not others_first else without_due or late)
        number = ready.popleft()
        seconds = waiting[number].seconds
        reserved.charge(*((0.0, seconds) if others_first else (seconds, 0.0)))
        times[number] = now
        heapq.heapreplace(free, now + seconds)
    return [*times, free[0]]


def _inputs(entry: Any) -> Mapping[str, Any]:
    inputs = entry.get("inputs") if isinstance(entry, Mapping) else None
    return inputs if isinstance(inputs, Mapping) else {}


def _lasting(inputs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return sorted(item for item in inputs.items() if item[0] not in SEEDS and not _is_text(*item))


def _is_text(name: str, value: Any) -> bool:
    return isinstance(value, str) and (
        len(value) > MIN_TEXT_CHARACTERS or any(part in TEXTS for part in name.split("_"))
    )


def _line(samples: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fits seconds per work and fixed seconds by least squares; neither is negative."""
    works, seconds = [sample[0] for sample in samples], [sample[1] for sample in samples]
    if len(set(works)) < 2:
        return 0.0, statistics.median(seconds)
    slope, start = statistics.linear_regression(works, seconds)
    if start < 0:
        slope, start = statistics.linear_regression(works, seconds, proportional=True)
    return (slope, start) if slope >= 0 else (0.0, statistics.median(seconds))


@dataclass(frozen=True, slots=True)
class _Size:
    """Holds the largest picture and batch in the inputs of a node and its dependencies; 0: none."""

    pixels: float = 0.0
    batch: float = 0.0


def _work(inputs: Mapping[str, Any], size: _Size) -> float:
    part = min(1.0, max(0.0, _number(inputs.get("denoise"), 1.0)))
    return _number(inputs.get("steps"), STEPS) * part * (size.pixels or PIXELS) * (size.batch or 1)


def _sizes(prompt: Mapping[str, Any]) -> dict[str, _Size]:
    """Computes the size at every node in time linear in the number of links."""
    sizes: dict[str, _Size] = {}
    entered: set[str] = set()
    waiting = list(prompt)
    while waiting:
        node = waiting[-1]
        missing = (
            []
            if node in entered
            else [source for source in _sources(prompt, node) if source not in entered]
        )
        entered.add(node)
        if missing:
            waiting += missing
            continue
        waiting.pop()
        inputs = _inputs(prompt[node])
        own = _Size(
            _number(inputs.get("width"), 0) * _number(inputs.get("height"), 0),
            _number(inputs.get("batch_size"), 0),
        )
        found = [own, *(sizes.get(source, _Size()) for source in _sources(prompt, node))]
        sizes[node] = _Size(max(size.pixels for size in found), max(size.batch for size in found))
    return sizes


def _sources(prompt: Mapping[str, Any], node: str) -> list[str]:
    links = (
        value
        for value in _inputs(prompt[node]).values()
        if isinstance(value, list | tuple) and len(value) == 2
    )
    return [link[0] for link in links if isinstance(link[0], str) and link[0] in prompt]


def _number(value: Any, otherwise: float) -> float:
    return (
        float(value)
        if isinstance(value, int | float) and not isinstance(value, bool)
        else otherwise
    )


class Forecast:
    """Forecasts start times and remaining seconds from the features of waiting and running jobs,
    and from the progress of running ones.
    """

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._slots, self._clock = slots, clock
        self._predictor = Predictor()
        self._alone = Predictor()  # from jobs that ran alone
        self._features: dict[str, JobFeatures] = {}
        self._running = RunningJobs()

    def know(self, job: Job, features: JobFeatures) -> None:
        """Adds a waiting or running job."""
        self._features[job.id] = features

    def on_event(self, job: Job, event: ClientEvent) -> None:
        """Follows the progress of a running job."""
        now = self._clock()
        self._running.on_event(job.id, event, now)
        if job.started is not None:
            self._running.note(job.id, self.remaining(job), now - job.started, now)

    def returned(self, job: Job) -> None:
        """Forgets the progress of a job that starts again."""
        self._running.forget(job.id)

    def ended(self, job: Job) -> None:
        """Removes a job that ended and learns from it."""
        features = self._features.pop(job.id, None)
        if features is not None and learned(job, features) is not None and job.ended is not None:
            self.learn(job, features)
            self._running.ended(job.id, features.shape, job.started or job.ended, job.ended)
        self._running.forget(job.id)

    def learn(self, job: Job, features: JobFeatures) -> None:
        """Learns the runtime of an ended job."""
        seconds = learned(job, features)
        if seconds is not None:
            self._predictor.learn(features, seconds)
            if job.alone:
                self._alone.learn(features, seconds)

    @property
    def known(self) -> bool:
        """Returns whether any job's seconds can be predicted."""
        return self._predictor.known

    def own(self, features: JobFeatures) -> float | None:
        """Predicts the seconds of a job with these features if it runs alone: from jobs of its
        shape that ran alone, if there are any. Jobs at the same time overlap their work or share
        calls, so each is charged for fewer seconds than it takes alone, or for more on a machine
        that they fill.
        """
        alone = self._alone.of_shape(features)
        return self._predictor.seconds(features) if alone is None else alone

    def starts(self, running: Iterable[Job], waiting: Sequence[Job]) -> list[float]:
        """Predicts the seconds until each waiting job starts, and last until one more would. The
        jobs wait in the order of the queue, after those that the runner has.
        """
        now = self._clock()
        ahead = [
            Waiting(
                self._seconds(job),
                math.inf if job.due is None else job.due - now,
                job.status == "in_progress",
            )
            for job in waiting
        ]
        return starts(self._slots, map(self._left, running), ahead)

    def next_place(self, running: Iterable[Job]) -> float:
        """Predicts the seconds until a running job ends, which frees a place in the queue."""
        return min(map(self._left, running), default=UNKNOWN)

    def remaining(self, job: Job) -> float | None:
        """Predicts the remaining seconds of a job that the runner has; None if nothing is known."""
        now, features = self._clock(), self._features.get(job.id)
        if features is None:
            return None
        elapsed, predicted = now - (job.started or now), self._predictor.seconds(features)
        return self._running.left(job.id, features, predicted, elapsed, now)

    @property
    def accuracy(self) -> Accuracy:
        """Compares predicted with measured remaining seconds."""
        return self._running.accuracy

    def _left(self, job: Job) -> float:
        known, now = self.remaining(job), self._clock()
        return left(UNKNOWN, now - (job.started or now)) if known is None else known

    def predicted(self, job: Job) -> float | None:
        """Predicts the seconds of a job from all jobs that have completed until now."""
        features = self._features.get(job.id)
        return job.predicted if features is None else self._predictor.seconds(features)

    def _seconds(self, job: Job) -> float:
        known = self.predicted(job)
        return UNKNOWN if known is None else known


def by_id(jobs: Sequence[Job], times: Sequence[float]) -> Mapping[str, float]:
    """Maps the ids of waiting jobs to their times. Ignores an additional last time, such as
    `starts` returns.
    """
    return {job.id: seconds for job, seconds in zip(jobs, times, strict=False)}
