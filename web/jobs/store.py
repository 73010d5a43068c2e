"""Stores jobs in a crash-safe SQLite file, in a data folder used by one server. Must not know
order, devices and clients.

When a method returns, its changes are on disk. One thread writes and another one reads, so that the
event loop blocks on neither.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from katz_graph.core.errors import RunError
from katz_graph.web.jobs import queries
from katz_graph.web.jobs.job import Job, Status
from katz_graph.web.jobs.queries import SortBy, Submitted
from katz_graph.web.jobs.records import COLUMNS, WHOLE, StoredFile
from katz_graph.web.jobs.store_file import FAULTS, explained, open_to_read, open_to_write
from katz_graph.web.jobs.writer import Writer
from katz_graph.web.options import RUNNER_LOCK

T = TypeVar("T")
FILE = "katz.sqlite3"
LOCK = "server.lock"
PATIENCE = 5.0  # seconds to wait for another server to end
RUNNER_PATIENCE = 60.0  # seconds to wait for the runner of a killed server to clean up and end


class JobStore:
    """Stores one server's jobs in a data folder that no other server uses."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._writer = Writer(opened.writing)
        self._reading = ThreadPoolExecutor(1, "job-reader")

    @classmethod
    def open(cls, folder: Path) -> JobStore:
        """Opens the store of a data folder; creates it if it does not exist. Rescues the readable
        rows of a damaged store; `notes` reports each loss in one line. Raises RunError if the store
        is in use, cannot be written, or has no readable row.
        """
        return cls(open_folder(folder))

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns one line for each problem found when the store was opened."""
        return self._opened.notes

    async def close(self) -> None:
        """Waits for pending writes, then closes the store."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        self._opened.reading.close()
        self._writer.close()  # the last connection merges the log into the file
        self._opened.lock.release()

    # jobs

    async def add(self, job: Job, key: str | None = None, digest: str = "") -> Submitted:
        """Adds a waiting job with its Idempotency-Key."""
        return await self._write(lambda connection: queries.add(connection, job, key, digest))

    async def repeated(self, client: str | None, key: str, digest: str | None) -> Submitted | None:
        """Returns the outcome of an earlier submission with this key, or None. A `digest` of None
        matches every body.
        """
        return await self._read(
            lambda connection: queries.repeated(connection, client, key, digest)
        )

    async def begin(self, id: str, at: float) -> None:
        """Records that a job's attempt started."""
        await self._run(
            "update jobs set status = 'in_progress', started = ? where id = ? and finished is null",
            (at, id),
        )

    async def stop(self, ids: Sequence[str]) -> None:
        """Records that unfinished jobs are cancelled: no later start runs them."""
        await self._write(lambda connection: queries.stop(connection, ids))

    async def wrote(self, id: str, files: Iterable[StoredFile]) -> None:
        """Records files that an attempt wrote. They are deleted if the attempt does not end."""
        await self._write(lambda connection: queries.note(connection, id, files))

    async def finish(self, job: Job, temporary: Sequence[StoredFile]) -> bool:
        """Records a job's end once; returns False if an end is already on record. `temporary`:
        files that are deleted when the job is forgotten.
        """
        return await self._write(lambda connection: queries.finish(connection, job, temporary))

    async def retry(self, id: str, crashes: int) -> None:
        """Records that an attempt ended without a result, and that its files are deleted. The job
        waits again.
        """
        await self._write(lambda connection: queries.retry(connection, id, crashes))

    async def place(self, jobs: Sequence[Job]) -> None:
        """Records the jobs' new places in the queue."""
        rows = [(job.number, job.order, job.id) for job in jobs]
        await self._write(
            lambda connection: connection.executemany(
                "update jobs set number = ?, place = ? where id = ?", rows
            )
        )

    async def unfinished(self) -> list[Job]:
        """Returns the waiting jobs and the jobs with an attempt that did not end, in no order."""
        return await self._read(
            lambda connection: queries.jobs(
                connection, f"select {WHOLE} from jobs where finished is null"
            )
        )

    async def last_place(self) -> int:
        """Returns the highest `order` of any job; 0 without jobs."""
        return await self._read(
            lambda connection: connection.execute(
                "select coalesce(max(place), 0) from jobs"
            ).fetchone()[0]
        )

    async def files(self, id: str) -> list[StoredFile]:
        """Returns the files that a job's attempts wrote."""
        query = "select place, path, bytes from files where job = ?"
        return await self._write(
            lambda connection: [StoredFile(*row) for row in connection.execute(query, (id,))]
        )

    # finished jobs

    async def job(self, id: str) -> Job | None:
        found = await self._read(
            lambda connection: queries.jobs(
                connection, f"select {WHOLE} from jobs where id = ?", (id,)
            )
        )
        return found[0] if found else None

    async def finished(self) -> int:
        """Counts the finished jobs."""
        return await self._read(
            lambda connection: connection.execute("select count(finished) from jobs").fetchone()[0]
        )

    async def history(self, count: int | None = None, first: int = 0) -> list[Job]:
        """Returns up to `count` finished jobs, oldest first, starting at index `first`."""
        return await self._read(lambda connection: queries.history(connection, count, first))

    async def completed(self, count: int) -> list[Job]:
        """Returns the most recently completed jobs, newest first."""
        return await self._newest(count, WHOLE, "status = 'completed'")

    async def recent(self, client: str, count: int) -> list[Job]:
        """Returns a client's most recently finished jobs, newest last."""
        return (await self._newest(count, WHOLE, "client = ?", client))[::-1]

    async def between(self, first: float, last: float, count: int) -> list[Job]:
        """Returns the newest `count` finished jobs that ran at some time from `first` to `last`,
        oldest first, without their documents.
        """
        found = await self._newest(count, COLUMNS, "ended >= ? and started <= ?", first, last)
        return found[::-1]

    async def _newest(self, count: int, columns: str, where: str, *values: Any) -> list[Job]:
        """Returns the columns of the finished jobs that meet a condition, newest first."""
        query = (
            f"select {columns} from jobs where finished is not null and {where} order by finished "
            "desc limit ?"
        )
        return await self._read(
            lambda connection: queries.jobs(connection, query, (*values, count))
        )

    async def listed(
        self,
        statuses: Sequence[Status] = (),
        workflow: str | None = None,
        sort_by: SortBy = "created_at",
        descending: bool = True,
        limit: int | None = None,
        offset: int = 0,
    ) -> tuple[list[Job], int]:
        """Returns a page of all jobs, and their total number. The jobs have no prompts, and their
        `extra` holds only the workflow's id. Empty `statuses` match every job.
        """
        await self._write(lambda connection: None)  # waits for earlier writes
        return await self._read(
            lambda connection: queries.listed(
                connection, statuses, workflow, sort_by, descending, limit, offset
            )
        )

    # deletion

    async def forget(self, ids: Sequence[str] | None) -> list[StoredFile]:
        """Forgets finished jobs, or all of them for None. Returns the temporary files that no other
        job shows, for the caller to delete.
        """
        return await self._write(lambda connection: queries.forget(connection, ids))

    async def finished_before(self, at: float) -> list[str]:
        return await self._ids("select id from jobs where finished is not null and ended < ?", at)

    async def surplus(self, count: int) -> list[str]:
        """Returns the oldest finished jobs beyond the newest `count`."""
        return await self._ids(
            "select id from jobs where finished is not null order by finished desc "
            "limit -1 offset ?",
            count,
        )

    async def oversized(self, limit: int) -> list[str]:
        """Returns the oldest finished jobs that have temporary files, if these exceed `limit` bytes
        together with those of newer jobs.
        """
        sizes = "(select job, sum(bytes) as bytes from files group by job having sum(bytes) > 0)"
        total = "sum(bytes) over (order by finished desc) as total"
        totals = f"select id, {total} from {sizes} join jobs on id = job where finished is not null"
        return await self._ids(f"select id from ({totals}) where total > ?", limit)

    async def keep_report(self, id: str, report: bytes) -> None:
        """Stores the report of a finished job, unless the job was forgotten."""
        query = (
            "insert or replace into reports (job, finished, report) select id, finished, ? from "
            "jobs where id = ?"
        )
        await self._run(query, (report, id))

    async def report(self, id: str) -> bytes | None:
        rows = await self._read(
            lambda connection: connection.execute(
                "select report from reports where job = ?", (id,)
            ).fetchall()
        )
        return rows[0][0] if rows else None

    async def drop_reports(self, limit: int) -> None:
        """Drops the oldest reports that, added to newer ones, exceed `limit` bytes."""
        total = "sum(length(report)) over (order by finished desc) as total"
        query = f"select job from (select job, {total} from reports) where total > ?"
        await self._run(f"delete from reports where job in ({query})", (limit,))

    async def forget_keys(self, before: float) -> None:
        """Drops the Idempotency-Keys of forgotten jobs that are older than a time."""
        await self._run(
            "delete from keys where created < ? and job not in (select id from jobs)", (before,)
        )

    async def shrink(self, pages: int = 2_000) -> None:
        """Returns free pages to the disk, up to `pages` pages of 4 KB."""
        await self._write(lambda connection: queries.shrink(connection, pages))

    # flags

    async def flag(self, name: str) -> bool:
        rows = await self._read(
            lambda connection: connection.execute(
                "select value from flags where name = ?", (name,)
            ).fetchall()
        )
        return bool(rows and rows[0][0])

    async def set_flag(self, name: str, value: bool) -> None:
        await self._run(
            "insert or replace into flags (name, value) values (?, ?)", (name, int(value))
        )

    async def _run(self, statement: str, values: tuple[Any, ...]) -> None:
        await self._write(lambda connection: connection.execute(statement, values))

    async def _ids(self, query: str, value: float) -> list[str]:
        return await self._read(
            lambda connection: [row[0] for row in connection.execute(query, (value,))]
        )

    async def _write(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.wrap_future(self._writer.ask(operation))
        except sqlite3.DataError as error:  # not a fault of the file
            raise ValueError(str(error)) from None
        except sqlite3.Error as error:
            raise explained(self._opened.file, error) from None

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._reading, query, self._opened.reading
            )
        except sqlite3.Error as error:
            raise explained(self._opened.file, error) from None


@dataclass(frozen=True, slots=True)
class Opened:
    """Holds an open store: its file, the lock against other servers, one connection for the writing
    and one for the reading thread, and one line for each problem found.
    """

    file: Path
    lock: FileLock
    writing: sqlite3.Connection
    reading: sqlite3.Connection
    notes: tuple[str, ...]


def open_folder(folder: Path) -> Opened:
    """Opens the store of a data folder; creates it if it does not exist. Raises RunError if the
    folder is in use, cannot be written, or its store is damaged beyond rescue.
    """
    file = folder / FILE
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = not (folder / LOCK).exists()
        lock.acquire(timeout=PATIENCE)
        with FileLock(folder / RUNNER_LOCK, timeout=RUNNER_PATIENCE, thread_local=False):
            writing, notes = open_to_write(file, new)
            return Opened(file, lock, writing, open_to_read(file), tuple(notes))
    except Timeout:
        if lock.is_locked:
            lock.release()
            raise RunError(
                f"{folder}: the runner of an earlier katz serve still runs (it holds "
                f"{RUNNER_LOCK}); stop it first"
            ) from None
        raise RunError(
            f"{folder}: another katz serve uses this data folder; stop it, or choose another "
            "one with --data"
        ) from None
    except OSError as error:
        lock.release()
        raise RunError(
            f"{folder}: the data folder cannot be written: {error.strerror or error}; choose "
            "another one with --data"
        ) from None
    except FAULTS as error:
        lock.release()
        raise explained(file, error) from None
    except RunError:
        lock.release()
        raise
