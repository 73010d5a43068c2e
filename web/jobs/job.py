"""A job: a graph that somebody submitted, and what became of it. Plain data; knows nothing of how
it is stored and run.
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
    """What a client asks for, checked already.

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


@dataclass(frozen=True, slots=True)
class Job:
    """All times are seconds since the epoch. Jobs of one `number` run by `order`, that of their
    arrival at first. `crashes`: how often what ran it died under it. `predicted`: seconds it was
    thought to take when it was accepted. `result`: how it ended.
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


def result_as_data(job: Job) -> dict[str, Any] | None:
    """How it ended as clients are told and the store keeps it; None before."""
    return None if job.result is None else JOB_EVENT.dump_python(JobEvent(job.id, job.result))


def workflow_id(job: Job) -> str | None:
    """The id of the editor's document that the job came from, where it has one."""
    document = job.extra.get("extra_pnginfo")
    workflow = document.get("workflow") if isinstance(document, Mapping) else None
    identity = workflow.get("id") if isinstance(workflow, Mapping) else None
    return identity if isinstance(identity, str) else None
