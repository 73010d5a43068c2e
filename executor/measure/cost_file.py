"""Reads and writes the SQLite file of measured costs, which processes share. Must not know its
tables.

The file only saves time: whatever is wrong with it, one warning is logged at most.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

# SQLITE_ERROR: other tables than ours
DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

Rows = Sequence[tuple[str | float, ...]]


class CostFile:
    """Writes rows at once where no other process writes; else a thread does, in their order, and
    nobody waits for it.

    `schema` makes the tables; `copy_to` fills a new file in place of a damaged one; `patience`:
    seconds that other processes may take to write. Threads may share one.
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
        self._is_written = False  # by some thread, which writes all that waits
        self._waiting: deque[tuple[str, Rows]] = deque()  # the first is being written

    def load(self, memory: sqlite3.Connection, tables: Sequence[str]) -> None:
        """Copies what the file holds into `memory`."""
        try:
            self._load(memory, tables)
        except (sqlite3.Error, OSError) as error:
            self._warn(error)

    def write(self, statement: str, rows: Rows) -> None:
        """Executes a statement for each of some rows, now or soon, in one short transaction."""
        with self._lock:
            self._waiting.append((statement, rows))
            if self._is_written:
                return
            self._is_written = True
        if not self._write_waiting(0.0):
            # the interpreter does not end before it has
            writer = threading.Thread(
                target=self._write_waiting, args=(self._patience,), name="katz-costs", daemon=False
            )
            try:
                writer.start()
            except RuntimeError:  # the interpreter ends already
                self._write_waiting(self._patience)

    def _write_waiting(self, patience: float) -> bool:
        """Writes what waits. False where other processes write now, and there is no patience."""
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
                if is_locked:  # nor would the others be written
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
            # one view of all tables, whatever another process writes meanwhile
            file.execute("begin")
            if not file.execute("select 1 from sqlite_schema").fetchall():
                return  # another process has just made the file
            for table in tables:
                rows = file.execute(f"select * from {table}").fetchall()
                if rows:
                    places = ", ".join("?" * len(rows[0]))
                    memory.executemany(f"insert or ignore into {table} values ({places})", rows)

    def _save(self, statement: str, rows: Rows, patience: float) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with closing(sqlite3.connect(self._path, timeout=patience)) as file, file:
                # what a power failure spoils is measured anew
                file.execute("pragma synchronous = off")
                # all tables or none are there for others
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
                "measured costs are not kept or measured anew: %s: %s", self._path, error
            )
        self._warned = True


def _code(error: Exception) -> int:
    """Returns SQLite's primary code of an error; 0 for another error."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF
