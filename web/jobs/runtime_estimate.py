"""Predicts the run times of jobs from finished jobs: from jobs of the same shape, or else from the
samplers' work. Pure arithmetic.

A shape is a graph without the inputs that hardly affect its time: seeds, texts and file names. Work
is evaluations x pixels x pictures.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from katz_graph.serving.simulator import Calls, Request, forecast
from katz_graph.web.events import ClientEvent
from katz_graph.web.jobs.job import Job, JobFeatures
from katz_graph.web.jobs.records import as_text
from katz_graph.web.jobs.remaining import SAME_SHAPE, SHAPES, Accuracy, RunningJobs, left, undivided

SEEDS = ("seed", "noise_seed", "control_after_generate")
# inputs with such a name, or `..._<name>`, `<name>_...`
TEXTS = ("text", "prompt", "negative", "positive", "prefix", "image", "title", "value")
MIN_TEXT_CHARACTERS = 200  # characters; longer strings are texts, never choices
RECENT = 100  # jobs of any shape used to fit seconds to work
UNKNOWN = 10.0  # predicted seconds of a job before any sample exists
PIXELS = 512 * 512  # of a picture without a size in the graph
STEPS = 20  # of a sampler with steps from another node
SAME_FORECAST_S = 0.25  # seconds for which a forecast of the same jobs counts
COMPARED_S = 0.25  # seconds between two forecasts that are made to be compared with the run
BEGIN = 1.0  # of forecasts; all jobs have arrived before


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


@dataclass(frozen=True, slots=True)
class Predicted:
    """Seconds from now until jobs start and end, by id, and until a group of devices has no more
    work.
    """

    starts: Mapping[str, float]
    ends: Mapping[str, float]
    idle: float


class Forecast:
    """Forecasts starts and ends of jobs: serves the rest of those that wait and run in the
    order of devices (`katz_graph.serving.simulator`). `slots`: groups of devices; `rows`: most rows
    of the calls that jobs share.
    """

    def __init__(self, slots: int, clock: Callable[[], float], rows: int = 0) -> None:
        self._slots, self._rows, self._clock = slots, rows, clock
        self._predictor = Predictor()
        self._alone = Predictor()  # from jobs that ran alone
        self._features: dict[str, JobFeatures] = {}
        self._running = RunningJobs()
        self._devices: dict[str, int] = {}  # groups by the device that advances samplers
        # the last forecast: its jobs and time
        self._last: tuple[Sequence[str], float, Predicted] | None = None
        self._compared = -math.inf  # time of the last forecast that is compared

    def know(self, job: Job, features: JobFeatures) -> None:
        """Adds a waiting or running job."""
        self._features[job.id] = features

    def forget(self, job: Job) -> None:
        """Removes a job that was not admitted."""
        self._features.pop(job.id, None)

    def on_event(
        self,
        job: Job,
        event: ClientEvent,
        others: Callable[[], tuple[Sequence[Job], Sequence[Job]]] = lambda: ((), ()),
    ) -> None:
        """Follows the progress of a running job. `others`: the served and the waiting jobs."""
        now = self._clock()
        self._running.on_event(job.id, event, now)
        if job.started is None or (work := self._work(job)) is None:
            return
        elapsed, alone = now - job.started, self._request(job, work).alone(self._running.seconds_of)
        if self._running.is_half_done(job.id, alone, elapsed):
            if now - self._compared < COMPARED_S:
                return self._running.note(job.id, None, now)
            self._compared = now
            served, waiting = others()
            if job.id not in {one.id for one in served}:
                served = [job, *served]
            remaining = self.predict(served, waiting).ends[job.id]
            if elapsed >= remaining:
                self._running.note(job.id, remaining, now)

    def returned(self, job: Job) -> None:
        """Forgets the progress of a job that starts again."""
        self._running.forget(job.id)
        self._last = None

    def ended(self, job: Job) -> None:
        """Removes a job that ended and learns from it."""
        features = self._features.pop(job.id, None)
        if features is not None and learned(job, features) is not None:
            self.learn(job, features)
            self._running.ended(job, features.shape)
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

    def predict(
        self, served: Sequence[Job], waiting: Sequence[Job], new: Job | None = None
    ) -> Predicted:
        """Predicts starts and ends of the served jobs and of those that wait, in the order of the
        queue, after those that the runner has. `new`: one of those that wait, which is not admitted
        yet; without predictions it takes no time.
        """
        now, jobs = self._clock(), [*served, *waiting]
        ids = [job.id for job in jobs]
        if new is None and self._last is not None:
            known, made, predicted = self._last
            if known == ids and now - made < SAME_FORECAST_S:
                passed = now - made
                return Predicted(
                    {id: max(0.0, at - passed) for id, at in predicted.starts.items()},
                    {id: max(0.0, at - passed) for id, at in predicted.ends.items()},
                    max(0.0, predicted.idle - passed),
                )
        requests = []
        for place, job in enumerate(jobs):
            work = self._work(job, len(jobs) == 1)
            work = work or self._whole(job, 0.0 if job is new else UNKNOWN)
            requests.append(self._request(job, work, place))
        found = forecast(requests, self._slots, cache(self._running.seconds_of), self._rows, BEGIN)
        predicted = Predicted(
            {ids[number]: at - BEGIN for number, at in found.starts.items()},
            {ids[number]: at - BEGIN for number, at in found.ends.items()},
            found.idle - BEGIN,
        )
        if new is None:
            self._last = ids, now, predicted
        return predicted

    def next_place(self, served: Sequence[Job]) -> float:
        """Predicts the seconds until a served job ends, which frees a place in the queue."""
        return min(self.predict(served, ()).ends.values(), default=UNKNOWN)

    def remaining(
        self, job: Job, served: Sequence[Job] = (), waiting: Sequence[Job] = ()
    ) -> float | None:
        """Predicts the remaining seconds of a job that the runner has, next to the served and the
        waiting jobs; None if nothing is known.
        """
        if self._work(job) is None:
            return None
        if job.id not in {one.id for one in (*served, *waiting)}:
            served = [job, *served]
        return self.predict(served, waiting).ends[job.id]

    def seconds_after(self, job: Job) -> Mapping[str, float]:
        """Predicts the seconds from the last evaluation of each sampler to the end of a job, by
        node. Those not known are absent.
        """
        features = self._features.get(job.id)
        return {} if features is None else self._running.seconds_after(features)

    @property
    def accuracy(self) -> Accuracy:
        """Compares predicted with measured remaining seconds."""
        return self._running.accuracy

    def predicted(self, job: Job) -> float | None:
        """Predicts the seconds of a job from all jobs that have completed until now."""
        features = self._features.get(job.id)
        return job.predicted if features is None else self._predictor.seconds(features)

    def _work(self, job: Job, lone: bool = False) -> tuple[Calls, ...] | None:
        """Returns the rest of a job; None if nothing is known. `lone`: there is no other."""
        now, features = self._clock(), self._features.get(job.id)
        if features is None:
            return None
        elapsed, predicted = now - (job.started or now), self._predictor.seconds(features)
        return self._running.left(job.id, features, predicted, elapsed, now, lone)

    def _whole(self, job: Job, unknown: float) -> tuple[Calls, ...]:
        """Returns the work of a job without features, of `unknown` seconds without prediction."""
        predicted = self.predicted(job)
        elapsed = self._clock() - (job.started or self._clock())
        return undivided(left(unknown if predicted is None else predicted, elapsed))

    def _request(self, job: Job, work: tuple[Calls, ...], place: int = 0) -> Request:
        """Returns a job as a request at a place of the queue. Times count from BEGIN."""
        device = self._running.device(job.id)
        number = self._devices.setdefault(device, len(self._devices)) if device else None
        return Request(
            (place + 1) * 1e-6,
            work,
            math.inf if job.due is None else BEGIN + job.due - self._clock(),
            device=None if number is None else number % self._slots,
        )
