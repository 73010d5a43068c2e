"""Defines the tables of the job store, and converts jobs to rows and back. Must not know
transactions and threads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from katz_graph.web.events import Ended
from katz_graph.web.jobs.job import Job, Status, Submission, workflow_id
from katz_graph.web.options import MB

VERSION = 2  # of the tables
MAX_DOCUMENT_BYTES = 64 * MB  # bytes of one document, far below SQLite's limit for a row
# large texts come last, so that a scan of the other columns never reads them; `finished` numbers
# jobs in the order of their ends
SCHEMA = """
create table jobs (
    sequence integer primary key, id text not null unique, status text not null,
    number real not null, place integer not null, created real not null, started real, ended real,
    finished integer unique, crashes integer not null, deadline real, predicted real, client text,
    workflow text, origin text, checksum integer, targets text not null, result text,
    extra text not null, prompt text not null
);
create index jobs_listed on jobs (created, status, workflow);
create index jobs_lasted on jobs (ended - started, status, workflow);
create index jobs_client on jobs (client, finished);
create table keys (
    client text not null, key text not null, digest text not null, job text not null,
    created real not null, checksum integer, primary key (client, key)
);
create table files (
    job text not null, place text not null, path text not null, bytes integer not null,
    checksum integer, primary key (job, place, path)
) without rowid;
create index files_path on files (place, path);
create table flags (name text primary key, value integer not null, checksum integer) without rowid;
create table reports (
    job text primary key, finished integer not null, checksum integer, report blob not null
);
"""
JOBS = "jobs"
KEYS = {
    JOBS: ("sequence",),
    "keys": ("client", "key"),
    "files": ("job", "place", "path"),
    "flags": ("name",),
    "reports": ("job",),
}
"""Maps each table to its key columns."""
BLOBS = ("report",)
EARLIER = {
    1: """
create table if not exists reports (
    job text primary key, finished integer not null, report blob not null
);
alter table jobs add column origin text;
"""
    + "".join(f"alter table {table} add column checksum integer;\n" for table in KEYS)
}
"""Migrates the tables of an earlier version to the current one."""
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError)  # raised for a damaged row
COLUMNS = (
    "id, number, targets, client, status, created, started, ended, deadline, crashes, "
    "predicted, result, place, workflow"
)
WHOLE = f"{COLUMNS}, origin, extra, prompt"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Names a file that a job wrote or shows. `path` is relative to the folder named by `place`."""

    place: str
    path: str
    bytes: int = 0


ENDED: TypeAdapter[Ended] = TypeAdapter(Ended)
STATUSES = get_args(Status)


def as_text(value: Any) -> str:
    """Serializes to JSON, including NaN and infinities. Raises ValueError for values that JSON
    cannot represent, and for more than MAX_DOCUMENT_BYTES bytes.
    """
    data = to_json(value, inf_nan_mode="constants")
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ValueError(f"it has {len(data):,} bytes, more than {MAX_DOCUMENT_BYTES:,}")
    return data.decode()


def row_of(job: Job) -> dict[str, Any]:
    """Returns the columns of a waiting job. Raises ValueError if the prompt cannot be stored."""
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
        "origin": job.origin,
        "workflow": workflow_id(job),
        "targets": as_text(job.targets),
        "extra": as_text(job.extra),
        "prompt": as_text(job.prompt),
    }


def job_of(row: Sequence[Any]) -> Job:
    """Builds a job from the columns of COLUMNS or WHOLE. From COLUMNS, the job has no prompt, and
    its `extra` holds only the workflow's id.
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
    origin = ""
    if documents:
        origin, *texts = documents
        extra, prompt = (from_json(text) for text in texts)
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
        origin or "",
    )


def decoded(columns: Sequence[str], row: Sequence[Any]) -> list[Any]:
    """Decodes the texts of a row that was read as bytes. Raises ValueError if a text is damaged."""
    return [
        value.decode() if isinstance(value, bytes) and name not in BLOBS else value
        for name, value in zip(columns, row, strict=True)
    ]


def readable(table: str, row: Mapping[str, Any]) -> bool:
    """Checks that a row, with its texts as bytes, can be parsed."""
    names = WHOLE.split(", ") if table == JOBS else list(row)
    try:
        values = decoded(names, [row[name] for name in names])
        if table == JOBS:
            job = job_of(values)
            return job.status in STATUSES and isinstance(job.prompt, dict)
    except UNREADABLE:
        return False
    return True


def digest(submission: Submission) -> str:
    """Hashes the fields that two submissions with the same Idempotency-Key must share. Excludes the
    deadline because it is relative to the arrival.
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
