"""Reads and writes the SQLite file of measured costs, which processes share. Must not know its
tables.

The file only saves time: any error with it logs at most one warning.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

# SQLITE_ERROR: the file has another schema
DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Rows = Sequence[tuple[str | float, ...]]


class CostFile:
    """Writes rows immediately if no other process is writing. Otherwise a thread writes them in
    order, and the caller does not wait.

    `schema` creates the tables. `copy_to` fills the file that replaces a damaged one. `patience`:
    seconds to wait for other writing processes. Threads may share an instance.
    """

    def __init__(
        self,
        path: Path,
        schema: str,
        copy_to: Callable[[sqlite3.Connection], None],
        patience: float,
    ) -> None:
        self._path, self._schema, self._copy_to = path, schema, copy_to
        self._patience = patience
        self._warned = False
        self._lock = threading.Lock()
        self._is_written = False  # whether a thread is writing the queue
        self._waiting: deque[tuple[str, Rows]] = deque()  # the first item is being written

    def load(self, memory: sqlite3.Connection, tables: Sequence[str]) -> None:
        """Copies the contents of the file into `memory`."""
        try:
            self._load(memory, tables)
        except (sqlite3.Error, OSError) as error:
            self._warn(error)

    def write(self, statement: str, rows: Rows) -> None:
        """Executes a statement for each row, now or soon, in one short transaction."""
        with self._lock:
            self._waiting.append((statement, rows))
            if self._is_written:
                return
            self._is_written = True
        if not self._write_waiting(0.0):
            # non-daemon, so that the interpreter waits for it
            writer = threading.Thread(
                target=self._write_waiting, args=(self._patience,), name="katz-costs", daemon=False
            )
            try:
                writer.start()
            except RuntimeError:  # the interpreter is shutting down
                self._write_waiting(self._patience)

    def _write_waiting(self, patience: float) -> bool:
        """Writes the queue. Returns False if other processes are writing and `patience` is 0."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_written = False
                    return True
                statement, rows = self._waiting[0]
            try:
                self._save(statement, rows, patience)
            except (sqlite3.Error, OSError) as error:
                is_locked = _code(error) in LOCKED
                if is_locked and not patience:
                    return False
                self._warn(error)
                if is_locked:  # the other rows would fail as well
                    with self._lock:
                        self._waiting.clear()
                    continue
            with self._lock:
                self._waiting.popleft()

    def _load(self, memory: sqlite3.Connection, tables: Sequence[str]) -> None:
        if not self._path.exists():
            return
        address = f"{self._path.absolute().as_uri()}?mode=rw"
        with closing(sqlite3.connect(address, timeout=self._patience, uri=True)) as file:
            # reads all tables consistently while other processes write
            file.execute("begin")
            known = {name for (name,) in file.execute("select name from sqlite_schema")}
            if not known:
                return  # another process has just created the file
            for table in known.intersection(tables):
                rows = file.execute(f"select * from {table}").fetchall()
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    memory.executemany(f"insert or ignore into {table} values ({places})", rows)
            if missing := [table for table in tables if table not in known]:
                file.executescript(f"begin immediate; {self._schema} commit")
                logging.getLogger(__name__).warning(
                    "%s is of an earlier version: %s are measured again",
                    self._path,
                    ", ".join(missing),
                )

    def _save(self, statement: str, rows: Rows, patience: float) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self._path, timeout=patience)) as file, file:
                # a power failure may lose data, which is then measured again
                file.execute("pragma synchronous = off")
                # other processes see all tables or none
                file.executescript(f"begin immediate; {self._schema}")
                file.executemany(statement, rows)
        except sqlite3.DatabaseError as error:
            if _code(error) not in DAMAGED:
                raise
            self._warn(error)
            self._path.unlink(missing_ok=True)
            self._path.with_name(f"{self._path.name}-journal").unlink(missing_ok=True)
            with closing(sqlite3.connect(self._path, timeout=patience)) as file:
                self._copy_to(file)

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            logging.getLogger(__name__).warning(
                "measured costs cannot be stored: %s: %s", self._path, error
            )
        self._warned = True


def _code(error: Exception) -> int:
    """Returns the primary SQLite code of an error; 0 for other errors."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
