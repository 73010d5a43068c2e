"""Implements the job store's queries. Each function runs inside the caller's transaction."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from katz_graph.core.messages import one_line, show
from katz_graph.web.jobs.job import Job, Status, result_as_data
from katz_graph.web.jobs.records import (
    COLUMNS,
    UNREADABLE,
    WHOLE,
    StoredFile,
    as_text,
    job_of,
    row_of,
)

log = logging.getLogger("katz.jobs")
ORDERS = {"created_at": "created", "execution_duration": "ended - started"}

SortBy = Literal["created_at", "execution_duration"]


@dataclass(frozen=True, slots=True)
class Submitted:
    """Holds the outcome of a submission: a new job, the earlier job of its key, or neither because
    the id or key is in use.
    """

    job: Job | None
    repeated: bool = False
    taken: Literal["id", "key", "forgotten"] | None = None


def jobs(connection: sqlite3.Connection, query: str, values: Sequence[Any] = ()) -> list[Job]:
    """Returns the jobs of a query. Skips and logs rows damaged since the store was opened."""
    found = []
    try:
        for row in connection.execute(query, values):
            try:
                found.append(job_of(row))
            except UNREADABLE:
                log.error("the row of job %s is damaged and left out", one_line(show(row[0])))
    except sqlite3.DatabaseError as error:
        if not found:
            raise
        log.error("the job store is damaged (%s): jobs are left out", error.sqlite_errorname)
    return found


def add(connection: sqlite3.Connection, job: Job, key: str | None, digest: str) -> Submitted:
    if key is not None and (earlier := repeated(connection, job.client, key, digest)) is not None:
        return earlier
    if connection.execute("select 1 from jobs where id = ?", (job.id,)).fetchone():
        return Submitted(None, taken="id")
    row = row_of(job)
    connection.execute(
        f"insert into jobs ({', '.join(row)}) values ({', '.join('?' * len(row))})",
        tuple(row.values()),
    )
    if key is not None:
        connection.execute(
            "insert into keys (client, key, digest, job, created) values (?, ?, ?, ?, ?)",
            (job.client or "", key, digest, job.id, job.created),
        )
    return Submitted(job)


def repeated(
    connection: sqlite3.Connection, client: str | None, key: str, digest: str | None
) -> Submitted | None:
    found = connection.execute(
        "select digest, job from keys where client = ? and key = ?", (client or "", key)
    ).fetchone()
    if found is None:
        return None
    if digest not in (None, found[0]):
        return Submitted(None, taken="key")
    found_jobs = jobs(connection, f"select {WHOLE} from jobs where id = ?", (found[1],))
    if not found_jobs:
        return Submitted(None, taken="forgotten")
    return Submitted(found_jobs[0], repeated=True)


def finish(connection: sqlite3.Connection, job: Job, temporary: Sequence[StoredFile]) -> bool:
    changed = connection.execute(
        "update jobs set status = ?, started = ?, ended = ?, crashes = ?, result = ?, "
        "finished = (select coalesce(max(finished), 0) + 1 from jobs) where id = ? and "
        "finished is null",
        (job.status, job.started, job.ended, job.crashes, as_text(result_as_data(job)), job.id),
    )
    if not changed.rowcount:
        return False
    connection.execute("delete from files where job = ?", (job.id,))
    note(connection, job.id, temporary)
    return True


def stop(connection: sqlite3.Connection, ids: Sequence[str]) -> None:
    query = "update jobs set status = 'cancelled' where id = ? and finished is null"
    connection.executemany(query, [(id,) for id in ids])


def note(connection: sqlite3.Connection, id: str, files: Iterable[StoredFile]) -> None:
    rows = [(id, file.place, file.path, file.bytes) for file in files]
    query = "insert or replace into files (job, place, path, bytes) values (?, ?, ?, ?)"
    connection.executemany(query, rows)


def retry(connection: sqlite3.Connection, id: str, crashes: int) -> None:
    connection.execute("delete from files where job = ?", (id,))
    query = (
        "update jobs set status = 'pending', started = null, crashes = ? where id = ? and "
        "finished is null"
    )
    connection.execute(query, (crashes, id))


def history(connection: sqlite3.Connection, count: int | None, first: int) -> list[Job]:
    page = "select sequence from jobs where finished is not null order by finished limit ? offset ?"
    query = f"select {WHOLE} from jobs where sequence in ({page}) order by finished"
    return jobs(connection, query, (_bounded(count), _bounded(first)))


def listed(
    connection: sqlite3.Connection,
    statuses: Sequence[Status],
    workflow: str | None,
    sort_by: SortBy,
    descending: bool,
    limit: int | None,
    offset: int,
) -> tuple[list[Job], int]:
    conditions: Mapping[str, Sequence[Any]] = {
        **({f"status in ({', '.join('?' * len(statuses))})": statuses} if statuses else {}),
        **({"workflow = ?": [workflow]} if workflow is not None else {}),
    }
    where = f"where {' and '.join(conditions)}" if conditions else ""
    values = [value for given in conditions.values() for value in given]
    (total,) = connection.execute(f"select count(*) from jobs {where}", values).fetchone()
    direction = "desc" if descending else "asc"
    order = f"order by {ORDERS[sort_by]} {direction}, sequence {direction}"
    page = f"select sequence from jobs {where} {order} limit ? offset ?"
    found = jobs(
        connection,
        f"select {COLUMNS} from jobs where sequence in ({page}) {order}",
        [*values, _bounded(limit), _bounded(offset)],
    )
    return found, total


def forget(connection: sqlite3.Connection, ids: Sequence[str] | None) -> list[StoredFile]:
    if ids is None:
        ids = [
            row[0] for row in connection.execute("select id from jobs where finished is not null")
        ]
    files: list[StoredFile] = []
    for id in ids:
        if not connection.execute(
            "delete from jobs where id = ? and finished is not null", (id,)
        ).rowcount:
            continue
        files += [
            StoredFile(*row)
            for row in connection.execute(
                "select place, path, bytes from files where job = ?", (id,)
            )
        ]
        connection.execute("delete from files where job = ?", (id,))
        connection.execute("delete from reports where job = ?", (id,))
    shown = "select 1 from files where place = ? and path = ?"
    return [
        file for file in files if not connection.execute(shown, (file.place, file.path)).fetchone()
    ]


def shrink(connection: sqlite3.Connection, pages: int) -> None:
    (unused,) = connection.execute("pragma freelist_count").fetchone()
    for _ in range(min(unused, pages)):
        connection.execute("pragma incremental_vacuum")  # runs one step, which frees a page


def _bounded(count: int | None) -> int:
    """Clamps a count to SQLite's integers; -1 means no limit."""
    return -1 if count is None else min(max(0, count), 2**62)
