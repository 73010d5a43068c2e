"""Defines a job: a graph that somebody submitted, and its result. Plain data; must not know how it
is stored and run.
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
    """A client's request for a job, checked already.

    `prompt`: the graph in API format as it will run (literals have the types of their inputs);
    `targets`: the outputs to run. `extra`: the client's `extra_data` without secrets. `number`:
    place in the queue, lowest first; None: behind all; `front`: before all. `deadline`: seconds
    since the epoch by which it has to be done. `key`: its Idempotency-Key.
    """

    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    id: str | None = None
    client: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    number: float | None = None
    front: bool = False
    deadline: float | None = None
    key: str | None = None
    origin: str = ""  # the address that it came from, as `origin_of` gives it


@dataclass(frozen=True, slots=True)
class Job:
    """A submitted graph and its state. All times are seconds since the epoch. Jobs of one `number`
    run by `order`, at first that of their arrival. `crashes`: how often the runner died under it.
    `predicted`: the predicted seconds when it was accepted. `result`: its end.
    """

    id: str
    number: float
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    client: str | None
    extra: Mapping[str, Any]
    status: Status
    created: float
    started: float | None = None
    ended: float | None = None
    deadline: float | None = None
    crashes: int = 0
    predicted: float | None = None
    result: Ended | None = None
    order: int = 0
    origin: str = ""  # as of its submission; clients never see it


def result_as_data(job: Job) -> dict[str, Any] | None:
    """Returns a job's end as data for clients and the store; None before."""
    return None if job.result is None else JOB_EVENT.dump_python(JobEvent(job.id, job.result))


def workflow_id(job: Job) -> str | None:
    """Returns the id of the editor's document that the job came from, where it has one."""
    document = job.extra.get("extra_pnginfo")
    workflow = document.get("workflow") if isinstance(document, Mapping) else None
    identity = workflow.get("id") if isinstance(workflow, Mapping) else None
    return identity if isinstance(identity, str) else None
