"""Defines the tables of the job store, and converts jobs to rows and back. Must not know
transactions and threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from katz_graph.web.events import Ended
from katz_graph.web.jobs.job import Job, Submission, workflow_id
from katz_graph.web.options import MB

VERSION = 1  # of the tables
LARGEST = 64 * MB  # bytes of one document, far below what a row of SQLite holds
# large texts come last, so that a scan of the others never reads them; `finished` counts jobs in
# the order of their ends
SCHEMA = """
create table jobs (
    sequence integer primary key, id text not null unique, status text not null,
    number real not null, place integer not null, created real not null, started real, ended real,
    finished integer unique, crashes integer not null, deadline real, predicted real, client text,
    workflow text, targets text not null, result text, extra text not null, prompt text not null
);
create index jobs_listed on jobs (created, status, workflow);
create index jobs_lasted on jobs (ended - started, status, workflow);
create index jobs_client on jobs (client, finished);
create table keys (
    client text not null, key text not null, digest text not null, job text not null,
    created real not null, primary key (client, key)
);
create table files (
    job text not null, place text not null, path text not null, bytes integer not null,
    primary key (job, place, path)
) without rowid;
create index files_path on files (place, path);
create table flags (name text primary key, value integer not null) without rowid;
"""
# stores of the same version may lack it; `finished` is that of the job
REPORTS = """
create table if not exists reports (
    job text primary key, finished integer not null, report blob not null
)
"""
COLUMNS = (
    "id, number, targets, client, status, created, started, ended, deadline, crashes, "
    "predicted, result, place, workflow"
)
WHOLE = f"{COLUMNS}, extra, prompt"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a job wrote or shows, by its path relative to the folder that `place` names."""

    place: str
    path: str
    bytes: int = 0


ENDED: TypeAdapter[Ended] = TypeAdapter(Ended)


def as_text(value: Any) -> str:
    """Writes JSON; keeps NaN and infinities. Raises ValueError for what JSON cannot say, and for
    more than LARGEST bytes.
    """
    data = to_json(value, inf_nan_mode="constants")
    if len(data) > LARGEST:
        raise ValueError(f"it has {len(data):,} bytes, more than {LARGEST:,}")
    return data.decode()


def row_of(job: Job) -> dict[str, Any]:
    """Returns the columns of a waiting job. Raises ValueError for a prompt that cannot be kept."""
    return {
        "id": job.id,
        "status": job.status,
        "number": job.number,
        "place": job.order,
        "created": job.created,
        "crashes": job.crashes,
        "deadline": job.deadline,
        "predicted": job.predicted,
        "client": job.client,
        "workflow": workflow_id(job),
        "targets": as_text(job.targets),
        "extra": as_text(job.extra),
        "prompt": as_text(job.prompt),
    }


def job_of(row: Sequence[Any]) -> Job:
    """Builds a job from the columns of COLUMNS or WHOLE. Without its documents a job has no prompt,
    and only the workflow's id as its extra.
    """
    (
        identity,
        number,
        targets,
        client,
        status,
        created,
        started,
        ended,
        deadline,
        crashes,
        predicted,
        result,
        place,
        workflow,
        *documents,
    ) = row
    if documents:
        extra, prompt = (from_json(text) for text in documents)
    else:
        extra = {"extra_pnginfo": {"workflow": {"id": workflow}}} if workflow is not None else {}
        prompt = {}
    return Job(
        identity,
        number,
        prompt,
        tuple(from_json(targets)),
        client,
        extra,
        status,
        created,
        started,
        ended,
        deadline,
        crashes,
        predicted,
        None if result is None else ENDED.validate_json(result),
        place,
    )


def digest(submission: Submission) -> str:
    """Hashes what two submissions of one Idempotency-Key must have in common. A deadline is left
    out: it is counted from the arrival.
    """
    body = [
        submission.prompt,
        submission.targets,
        submission.id,
        submission.extra,
        submission.number,
        submission.front,
    ]
    return hashlib.sha256(as_text(body).encode()).hexdigest()
