"""Defines a job: a submitted graph and its result. Plain data; must not know how jobs are stored
and run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from katz_graph.web.events import JOB_EVENT, Ended, JobEvent

Status = Literal["pending", "in_progress", "completed", "failed", "cancelled"]
FINISHED: tuple[Status, ...] = ("completed", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Submission:
    """Holds a client's validated request for a job."""

    # the graph in API format as it will run; literals have the types of their inputs
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]  # outputs to run
    id: str | None = None
    client: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)  # `extra_data` without secrets
    number: float | None = None  # priority in the queue, lowest first; None: after all others
    front: bool = False  # before all others
    deadline: float | None = None  # seconds since the epoch
    key: str | None = None  # the client's Idempotency-Key
    origin: str = ""  # the client's address, as `origin_of` returns it


@dataclass(frozen=True, slots=True)
class Job:
    """Holds a submitted graph and its state. All times are seconds since the epoch."""

    id: str
    number: float  # jobs of one client run by `number`, then by `order`
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    client: str | None
    extra: Mapping[str, Any]
    status: Status
    created: float
    started: float | None = None
    ended: float | None = None
    deadline: float | None = None
    crashes: int = 0  # runner crashes during the job
    predicted: float | None = None  # seconds, predicted at admission
    result: Ended | None = None
    order: int = 0  # initially the order of arrival
    origin: str = ""  # copied from the submission; never sent to clients
    due: float | None = None  # when the job should end; None: no due time; not stored
    # seconds of a group of devices, if it ended in this process; not stored
    device_seconds: float | None = None
    alone: bool = False  # the runner had no other job during it; not stored


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """Holds the features that determine a job's run time."""

    shape: str
    work: float
    samplers: int = 1  # nodes with steps


@dataclass(frozen=True, slots=True)
class DueTimes:
    """Gives jobs without a deadline a due time: `factor` times the predicted seconds after they
    arrive; None: no due time. `fail_late`: waiting jobs that cannot meet a due time fail instead of
    running after all others.
    """

    factor: float | None = None
    fail_late: bool = False

    def of(self, job: Job) -> float | None:
        """Returns a due time in seconds since the epoch; None: no due time."""
        if job.deadline is not None or self.factor is None or job.predicted is None:
            return job.deadline
        return job.created + self.factor * job.predicted


NO_DUE_TIMES = DueTimes()


def result_as_data(job: Job) -> dict[str, Any] | None:
    """Returns a job's end as data for clients and the store, or None if it has not ended."""
    return None if job.result is None else JOB_EVENT.dump_python(JobEvent(job.id, job.result))


def workflow_id(job: Job) -> str | None:
    """Returns the id of the editor document that the job came from, or None."""
    document = job.extra.get("extra_pnginfo")
    workflow = document.get("workflow") if isinstance(document, Mapping) else None
    identity = workflow.get("id") if isinstance(workflow, Mapping) else None
    return identity if isinstance(identity, str) else None
