"""Writes to an SQLite file from one thread. Operations that wait at the same time share a
transaction, so that a burst costs one disk sync.

Must not know the data.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")
TOGETHER = 256  # operations of one transaction


@dataclass(frozen=True, slots=True)
class _Asked:
    operation: Callable[[sqlite3.Connection], Any]
    answer: Future[Any]


class Writer:
    """Runs operations in the order of `ask`. The connection is in autocommit mode and used only by
    this thread.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._asked: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="job-store", daemon=True)
        self._thread.start()

    def ask(self, operation: Callable[[sqlite3.Connection], T]) -> Future[T]:
        """Queues an operation; the future has its result after the commit. An exception of the
        operation undoes this operation alone; an sqlite3.Error of the file undoes the whole
        transaction.
        """
        answer: Future[T] = Future()
        # the operation runs even if the caller stops waiting
        answer.set_running_or_notify_cancel()
        self._asked.put(_Asked(operation, answer))
        return answer

    def close(self) -> None:
        """Runs the pending operations, then closes the connection. Do not call `ask` afterwards."""
        self._asked.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (first := self._asked.get()) is not None:
            batch: list[_Asked] = [first]
            last = False
            while len(batch) < TOGETHER and not last and not self._asked.empty():
                following = self._asked.get()
                if following is None:
                    last = True
                else:
                    batch.append(following)
            self._carry_out(batch)
            if last:
                return

    def _carry_out(self, batch: list[_Asked]) -> None:
        outcomes: list[tuple[_Asked, Any, Exception | None]] = []
        try:
            self._connection.execute("begin immediate")
            for asked in batch:
                outcomes.append((asked, *self._one(asked)))
            self._connection.execute("commit")
        except Exception as error:  # of the file: no operation is on disk
            # if the rollback fails, the next transaction finds this one open, fails, and rolls it
            # back
            with suppress(sqlite3.Error):
                self._connection.rollback()
            outcomes = [(asked, None, error) for asked in batch]
        for asked, value, failure in outcomes:
            if failure is None:
                asked.answer.set_result(value)
            else:
                asked.answer.set_exception(failure)

    def _one(self, asked: _Asked) -> tuple[Any, Exception | None]:
        self._connection.execute("savepoint one")
        try:
            value = asked.operation(self._connection)
        except Exception as error:
            if not self._connection.in_transaction:  # rolled back: the disk is full
                raise
            self._connection.execute("rollback to one")
            self._connection.execute("release one")
            return None, error
        self._connection.execute("release one")
        return value, None
