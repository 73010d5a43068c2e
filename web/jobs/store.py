"""Stores jobs in an SQLite file that a crash at any moment leaves whole, in a data folder for one
server alone. Must not know order, devices and clients.

What a method returned for is on disk. Writes go through one thread, reads through another one, so
that the event loop waits for neither.
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
from katz_graph.web.jobs.queries import Kept, SortBy
from katz_graph.web.jobs.records import COLUMNS, WHOLE, StoredFile
from katz_graph.web.jobs.store_file import FAULTS, explained, open_to_read, open_to_write
from katz_graph.web.jobs.writer import Writer
from katz_graph.web.options import RUNNER_LOCK

T = TypeVar("T")
FILE = "katz.sqlite3"
LOCK = "server.lock"
PATIENCE = 5.0  # seconds for another server to end
RUNNER_PATIENCE = 60.0  # seconds for the runner of a server that was killed to clean up and end


class JobStore:
    """Stores one server's jobs, in a data folder that it has for itself."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._writer = Writer(opened.writing)
        self._reading = ThreadPoolExecutor(1, "job-reader")

    @classmethod
    def open(cls, folder: Path) -> JobStore:
        """Opens the store of a data folder, and makes it where there is none. Of a damaged one the
        rows that can be read are kept; `notes` has a line for what is lost. Raises RunError when
        it is in use, cannot be written, or nothing of it can be read.
        """
        return cls(open_folder(folder))

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns a line for each thing that was wrong with the store when it was opened."""
        return self._opened.notes

    async def close(self) -> None:
        """Waits for pending writes. The store cannot be used afterwards."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._reading.shutdown()
        self._opened.reading.close()
        self._writer.close()  # the last connection folds the log into the file
        self._opened.lock.release()

    # jobs

    async def add(self, job: Job, key: str | None = None, digest: str = "") -> Kept:
        """Adds a job that waits, with the Idempotency-Key it came with."""
        return await self._write(lambda connection: queries.add(connection, job, key, digest))

    async def repeated(self, client: str | None, key: str, digest: str | None) -> Kept | None:
        """Returns the outcome of an earlier submission with this key; None when there was none.
        `digest` None: whatever it was.
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
        """Records that jobs which have not ended are cancelled: no later start takes them up."""
        await self._write(lambda connection: queries.stop(connection, ids))

    async def wrote(self, id: str, files: Iterable[StoredFile]) -> None:
        """Records files that an attempt wrote; they are deleted when it does not end."""
        await self._write(lambda connection: queries.note(connection, id, files))

    async def finish(self, job: Job, temporary: Sequence[StoredFile]) -> bool:
        """Records a job's end, once and for all; False when it was known already. `temporary`:
        files that go when the job is forgotten.
        """
        return await self._write(lambda connection: queries.finish(connection, job, temporary))

    async def retry(self, id: str, crashes: int) -> None:
        """Records that an attempt came to nothing and its files are gone: the job waits again."""
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
        """Returns jobs that wait, or whose attempt did not end, in no order."""
        return await self._read(
            lambda connection: queries.jobs(
                connection, f"select {WHOLE} from jobs where finished is null"
            )
        )

    async def last_place(self) -> int:
        """Returns the highest `order` that a job has; 0 without jobs."""
        return await self._read(
            lambda connection: connection.execute(
                "select coalesce(max(place), 0) from jobs"
            ).fetchone()[0]
        )

    async def files(self, id: str) -> list[StoredFile]:
        """Returns the files that the attempts of a job wrote."""
        query = "select place, path, bytes from files where job = ?"
        return await self._write(
            lambda connection: [StoredFile(*row) for row in connection.execute(query, (id,))]
        )

    # what ended

    async def job(self, id: str) -> Job | None:
        found = await self._read(
            lambda connection: queries.jobs(
                connection, f"select {WHOLE} from jobs where id = ?", (id,)
            )
        )
        return found[0] if found else None

    async def finished(self) -> int:
        """Counts the jobs that ended."""
        return await self._read(
            lambda connection: connection.execute("select count(finished) from jobs").fetchone()[0]
        )

    async def history(self, count: int | None = None, first: int = 0) -> list[Job]:
        """Returns jobs that ended, oldest first, from the one at `first` on; `count` at most."""
        return await self._read(lambda connection: queries.history(connection, count, first))

    async def completed(self, count: int) -> list[Job]:
        """Returns the jobs that completed last, newest first."""
        query = (
            f"select {WHOLE} from jobs where finished is not null and status = 'completed' "
            "order by finished desc limit ?"
        )
        return await self._read(lambda connection: queries.jobs(connection, query, (count,)))

    async def recent(self, client: str, count: int) -> list[Job]:
        """Returns a client's jobs that ended last, newest last."""
        query = (
            f"select {WHOLE} from jobs where client = ? and finished is not null order by "
            "finished desc limit ?"
        )
        return await self._read(
            lambda connection: queries.jobs(connection, query, (client, count))[::-1]
        )

    async def between(self, first: float, last: float, count: int) -> list[Job]:
        """Returns jobs that ended and ran at some time from `first` to `last`, without their
        documents, oldest first; of more than `count` the newest.
        """
        query = (
            f"select {COLUMNS} from jobs where finished is not null and ended >= ? and "
            "started <= ? order by finished desc limit ?"
        )
        return await self._read(
            lambda connection: queries.jobs(connection, query, (first, last, count))[::-1]
        )

    async def listed(
        self,
        statuses: Sequence[Status],
        workflow: str | None,
        sort_by: SortBy,
        descending: bool,
        limit: int | None,
        offset: int,
    ) -> tuple[list[Job], int]:
        """Returns a page of all jobs without their documents, and their number. No `statuses`: jobs
        of any.
        """
        await self._write(lambda connection: None)  # what was asked for before is seen
        return await self._read(
            lambda connection: queries.listed(
                connection, statuses, workflow, sort_by, descending, limit, offset
            )
        )

    # forgetting

    async def forget(self, ids: Sequence[str] | None) -> list[StoredFile]:
        """Forgets jobs that ended, None: all of them. Returns the temporary files that no other job
        shows; the caller deletes them.
        """
        return await self._write(lambda connection: queries.forget(connection, ids))

    async def finished_before(self, at: float) -> list[str]:
        """Returns the jobs that ended before a time."""
        return await self._ids("select id from jobs where finished is not null and ended < ?", at)

    async def surplus(self, count: int) -> list[str]:
        """Returns the oldest of the jobs that ended, beyond the newest `count`."""
        return await self._ids(
            "select id from jobs where finished is not null order by finished desc "
            "limit -1 offset ?",
            count,
        )

    async def oversized(self, limit: int) -> list[str]:
        """Returns the oldest of the jobs that ended, whose temporary files are too much together
        with those of newer ones. `limit` in bytes.
        """
        sizes = "(select job, sum(bytes) as bytes from files group by job having sum(bytes) > 0)"
        total = "sum(bytes) over (order by finished desc) as total"
        totals = f"select id, {total} from {sizes} join jobs on id = job where finished is not null"
        return await self._ids(f"select id from ({totals}) where total > ?", limit)

    async def keep_report(self, id: str, report: bytes) -> None:
        """Keeps the report of a job that ended, unless the job was forgotten meanwhile."""
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
        """Drops the oldest reports, those that are too much together with newer ones. `limit` in
        bytes.
        """
        total = "sum(length(report)) over (order by finished desc) as total"
        query = f"select job from (select job, {total} from reports) where total > ?"
        await self._run(f"delete from reports where job in ({query})", (limit,))

    async def forget_keys(self, before: float) -> None:
        """Drops Idempotency-Keys that came before a time, and whose jobs are forgotten."""
        await self._run(
            "delete from keys where created < ? and job not in (select id from jobs)", (before,)
        )

    async def shrink(self, pages: int = 2_000) -> None:
        """Gives room of forgotten jobs back to the disk, so many pages of 4 KB at once."""
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
        except sqlite3.DataError as error:  # no fault of the file
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
    """An open store: its file, one connection for the thread that writes and one for the thread
    that reads, the lock that keeps other servers off, and a line for each thing that was wrong with
    it.
    """

    file: Path
    lock: FileLock
    writing: sqlite3.Connection
    reading: sqlite3.Connection
    notes: tuple[str, ...]


def open_folder(folder: Path) -> Opened:
    """Opens the store of a data folder, and makes it where there is none. Raises RunError when the
    folder is in use, cannot be written, or its store is damaged.
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
                f"{RUNNER_LOCK}); end it first"
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
