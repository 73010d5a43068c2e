"""When jobs will start and end, from what was learned of earlier ones. Looks at the queue and at what runs; changes neither."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from katz_graph.web.jobs.job import Job
from katz_graph.web.jobs.prediction import UNKNOWN, Features, Predictor, learned, left, starts


class Forecast:
    """Knows the features of the jobs that wait or run."""

    def __init__(self, slots: int, clock: Callable[[], float]) -> None:
        self._slots, self._clock = slots, clock
        self._predictor = Predictor()
        self._features: dict[str, Features] = {}

    def know(self, job: Job, features: Features) -> None:
        """A job waits or runs from now on."""
        self._features[job.id] = features

    def ended(self, job: Job) -> None:
        """A job ended: learn from it."""
        features = self._features.pop(job.id, None)
        if features is not None:
            self.learn(job, features)

    def learn(self, job: Job, features: Features) -> None:
        """Learn from a job that ended earlier."""
        seconds = learned(job, features)
        if seconds is not None:
            self._predictor.learn(features, seconds)

    def own(self, features: Features) -> float | None:
        """Seconds that a job of these features takes."""
        return self._predictor.seconds(features)

    def starts(self, running: Iterable[Job], waiting: Sequence[Job]) -> list[float]:
        """Seconds until each waiting job starts, and last those until one more would."""
        return starts(self._slots, self._left(running), [self._seconds(job) for job in waiting])

    def next_place(self, running: Iterable[Job]) -> float:
        """Seconds until a running job ends, so that the queue gets shorter."""
        return min(self._left(running), default=UNKNOWN)

    def _left(self, running: Iterable[Job]) -> list[float]:
        now = self._clock()
        return [left(self._seconds(job), now - (job.started or now)) for job in running]

    def _seconds(self, job: Job) -> float:
        features = self._features.get(job.id)
        known = self._predictor.seconds(features) if features is not None else None
        return UNKNOWN if known is None else known


def by_id(jobs: Sequence[Job], times: Sequence[float]) -> Mapping[str, float]:
    """The times of jobs that wait, without that of one more."""
    return {job.id: seconds for job, seconds in zip(jobs, times, strict=False)}
