"""Describes a job: its plans, device activity, and the times and reasons of its nodes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from katz_graph.core.events import Timeline
from katz_graph.planner.report.document import PlanData
from katz_graph.web.events import JobError
from katz_graph.web.jobs.job import Job, Status
from katz_graph.web.live.channel import JobState

NODES = 10_000


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node of a job, by its id in the graph that ran; `display` is the node of the prompt."""

    display: str
    type: str
    status: Literal["running", "finished", "error"]
    cached: bool
    seconds: float
    why: str


@dataclass(frozen=True, slots=True)
class JobReport:
    """Describes a job. Times are seconds since the epoch; those in `timeline` count from the job's
    start. `predicted`: planned seconds of sampling.

    `plans` are by node, as `katz plan --json` prints them. Contains only the most recent plans,
    spans and warnings, like the native channel's state.
    """

    job: str
    status: Status
    started: float | None
    ended: float | None
    predicted: float | None
    seconds: Mapping[str, float]
    error: JobError | None
    nodes: Mapping[str, NodeReport]
    plans: Mapping[str, PlanData]
    timeline: tuple[Timeline, ...]
    warnings: tuple[str, ...]


REPORT: TypeAdapter[JobReport] = TypeAdapter(JobReport)


def report_of(job: Job, state: JobState) -> JobReport:
    """Builds the report of a job from its accumulated state."""
    result = job.result
    return JobReport(
        job=job.id,
        status=job.status,
        started=state.started,
        ended=job.ended,
        predicted=None if result is None else result.predicted,
        seconds={} if result is None else result.seconds,
        error=None if result is None else result.error,
        nodes={
            name: NodeReport(
                node.display, node.type, node.status, node.cached, node.seconds, node.why
            )
            for name, node in list(state.nodes.items())[-NODES:]
        },
        plans=state.plans,
        timeline=tuple(state.timeline),
        warnings=tuple(state.warnings),
    )


def packed(report: JobReport) -> bytes:
    """Returns a report as compressed JSON."""
    return zlib.compress(REPORT.dump_json(report), 6)


def unpacked(data: bytes) -> bytes:
    """Returns the JSON of a report."""
    return zlib.decompress(data)
