"""Opens the job store's file: creates it if it does not exist, and rescues the rows of a damaged
one. Must not know how jobs are used.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from katz_graph.core.errors import DiskFull, RunError
from katz_graph.web.jobs.checksums import (
    COLUMN,
    Table,
    all_columns,
    is_whole,
    keep_checksums,
    tables,
)
from katz_graph.web.jobs.records import (
    EARLIER,
    JOBS,
    KEYS,
    SCHEMA,
    VERSION,
    decoded,
    readable,
)
from katz_graph.web.jobs.wal import commits

NEW = ".new"
DAMAGED = ".damaged"
SQLITE_SUFFIXES = ("-wal", "-shm")  # SQLite's own files
# UnicodeDecodeError: raised by Python for an SQLite error message that quotes a damaged name
FAULTS = (sqlite3.Error, UnicodeDecodeError)


def open_to_write(file: Path, new: bool) -> tuple[sqlite3.Connection, list[str]]:
    """Opens the store's file; creates it if it does not exist. Also returns one line for each
    repaired problem. `new`: no server has used the folder before. Raises RunError, sqlite3.Error or
    OSError if the file cannot be used.
    """
    notes: list[str] = []
    logged = commits(file)
    if not file.exists():
        if not new and logged == []:
            notes.append(
                f"{file}: the job store is missing from a folder that had one: an empty one is "
                f"created"
            )
        _create(file)
    elif file.stat().st_size == 0:
        aside = _put_aside(file)
        notes.append(
            f"{file}: the job store is empty, though it is not new: its jobs are lost; a new one "
            f"is created, and the old file is {aside.name}"
        )
        _create(file)
        logged = []
    connection = _connect(file)
    try:
        notes += _lost_entries(connection, file, logged)
        _bring_up_to_date(connection, file)
        if why := _damage(connection, file):
            connection.close()
            notes.append(_rescue(file, why))
            connection = _connect(file)
        keep_checksums(connection, tables(connection, KEYS))
    except BaseException:
        connection.close()
        raise
    return connection, notes


def open_to_read(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{file.absolute().as_uri()}?mode=ro",
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.text_factory = _text
    return connection


def explained(file: Path, error: Exception) -> RunError:
    """Explains a store error to users. Never quotes SQLite: its messages may contain row text."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, UnicodeDecodeError):
        code = sqlite3.SQLITE_CORRUPT
    name = getattr(error, "sqlite_errorname", type(error).__name__)
    if code == sqlite3.SQLITE_FULL:
        return DiskFull(
            f"{file}: the disk is full; jobs are neither accepted nor started until there is room"
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return RunError(
            f"{file}: the job store is damaged ({name}); it was not changed: move it away to "
            f"start with an empty one"
        )
    return RunError(f"{file}: the job store cannot be used ({name})")


def _create(file: Path) -> None:
    """Creates an empty store atomically."""
    new = file.with_name(f"{file.name}{NEW}")
    with suppress(FileNotFoundError):
        new.unlink()
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))  # prompts are private
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.execute("pragma auto_vacuum = incremental")
        connection.executescript(
            f"begin immediate; {SCHEMA} pragma user_version = {VERSION}; commit;"
        )
    new.replace(file)


def _connect(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    connection.text_factory = _text
    try:
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
    except BaseException:
        connection.close()
        raise
    return connection


def _text(data: bytes) -> str:
    """Decodes a text. Replaces invalid bytes, because SQLite's error for such a text would quote
    it.
    """
    return data.decode("utf-8", "replace")


def _bring_up_to_date(connection: sqlite3.Connection, file: Path) -> None:
    """Migrates the tables of an earlier version. Raises RunError for an unknown version, and
    sqlite3.Error if the tables do not match their version.
    """
    (version,) = connection.execute("pragma user_version").fetchone()
    if version in EARLIER:
        connection.executescript(
            f"begin immediate; {EARLIER[version]} pragma user_version = {VERSION}; commit;"
        )
    elif version != VERSION:
        raise RunError(
            f"{file}: written by another version of Katz Graph, or damaged (schema version "
            f"{version}, expected {VERSION}); choose another --data"
        )


def _lost_entries(
    connection: sqlite3.Connection, file: Path, logged: Sequence[int] | None
) -> list[str]:
    """Returns a line if SQLite dropped some of these `logged` commits when it read the log."""
    _, frames, _ = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    if logged is None:
        return [f"{file}: the job store's log cannot be read: its last changes are lost"]
    lost = sum(number > frames for number in logged)
    what = f"the last {lost} of {len(logged)} entries of the job store's log cannot be read"
    return [f"{file}: {what}: their changes are lost"] if lost else []


def _damage(connection: sqlite3.Connection, file: Path) -> str:
    """Describes damage to the pages or a row; returns an empty string if there is none. Raises
    RunError if tables are missing or differ from the schema.
    """
    if _shape(connection) != _new_shape():
        raise RunError(
            f"{file}: the job store is damaged (its tables do not match the schema); it was "
            f"not changed: move it away to start with an empty one"
        )
    try:
        if connection.execute("pragma integrity_check(1)").fetchall() != [("ok",)]:
            return "its pages contradict each other"
        for table in tables(connection, KEYS):
            rows = _raw(connection, f"select {all_columns(table)} from {table.name}")
            if wrong := sum(not _readable(table, row) for row in rows):
                return f"{wrong} rows of {table.name} do not match their checksums"
    except FAULTS as error:
        return str(getattr(error, "sqlite_errorname", "unreadable"))
    return ""


def _new_shape() -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        return _shape(fresh)


def _shape(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    """Returns the schema facts that determine how rows are read: columns with their types, and the
    columns of indices.
    """
    found: set[tuple[Any, ...]] = set()
    for table in KEYS:
        for row in connection.execute(f"pragma table_info({table})"):
            found.add((table, row[1], row[2].lower(), row[3], row[5]))
        for _, index, unique, origin, _ in connection.execute(f"pragma index_list({table})"):
            columns = connection.execute(f"pragma index_xinfo({index})").fetchall()
            names = tuple((row[2], row[3], row[4], row[5]) for row in columns)
            found.add((table, index, unique, origin, names))
    return found


def _raw(
    connection: sqlite3.Connection, query: str, values: Sequence[Any] = ()
) -> Iterator[tuple[Any, ...]]:
    """Yields the rows of a query with texts as bytes."""
    connection.text_factory = bytes
    try:
        yield from connection.execute(query, values)
    finally:
        connection.text_factory = _text


def _readable(table: Table, row: Sequence[Any]) -> bool:
    return is_whole(row) and readable(table.name, dict(zip(table.columns, row, strict=False)))


def _rescue(file: Path, why: str) -> str:
    """Renames a damaged store and creates a new one with the readable rows. Returns one line about
    it. If no job can be read, raises sqlite3.Error and leaves the store unchanged.
    """
    new = file.with_name(f"{file.name}{NEW}")
    _create(new)
    saved = []
    with closing(_connect(file)) as damaged, closing(_connect(new)) as fresh:
        for table in tables(fresh, KEYS):
            copied, lost = _copy(damaged, fresh, table)
            if copied or lost:
                saved.append(f"{copied:,} of {copied + lost:,} {table.name}")
    aside = _put_aside(file)
    new.replace(file)
    return (
        f"{file}: the job store was damaged ({why}): saved {', '.join(saved) or 'nothing'}; the "
        f"damaged file is {aside.name}"
    )


def _copy(damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: Table) -> tuple[int, int]:
    """Copies the readable rows of a table. Returns the numbers of copied and lost rows."""
    rows: dict[tuple[Any, ...], Sequence[Any]] = {}
    lost: set[tuple[Any, ...]] = set()
    places = [table.columns.index(name) for name in table.key]
    for row in _found(damaged, table):
        key = tuple(row[place] for place in places)
        if _readable(table, row):
            rows.setdefault(key, row)
        else:
            lost.add(key)
    lost = (_known(damaged, table) or lost) - set(rows)  # a damaged row's key may be wrong
    statement = (
        f"insert into {table.name} ({all_columns(table)}) values "
        f"({', '.join('?' * (len(table.columns) + 1))})"
    )
    copied = 0
    fresh.execute("begin immediate")
    for row in rows.values():
        # if two rows share an id, one is damaged
        with suppress(sqlite3.IntegrityError):
            fresh.execute(statement, decoded([*table.columns, COLUMN], row))
            copied += 1
    fresh.execute("commit")
    return copied, len(lost) + len(rows) - copied


def _found(damaged: sqlite3.Connection, table: Table) -> Iterator[Sequence[Any]]:
    """Yields the reachable rows of a table: from both ends, and by the keys in its indices. May
    yield a row more than once. Raises sqlite3.Error if an error prevents reading any job.
    """
    columns, order = all_columns(table), ", ".join(f"{name} desc" for name in table.key)
    failure: Exception | None = None
    reached = False
    queries: list[tuple[str, Sequence[Any]]] = [
        (f"select {columns} from {table.name} not indexed", ()),
        (f"select {columns} from {table.name} order by {order}", ()),
    ]
    where = " and ".join(f"{name} = ?" for name in table.key)
    one = f"select {columns} from {table.name} where {where}"
    for number, query in enumerate(queries):
        try:
            for row in _raw(damaged, *query):
                reached = True
                yield row
            if number == 0:
                return  # read completely
        except FAULTS as error:
            failure = error
        if number == 1:
            queries += [(one, decoded(table.key, key)) for key in _known(damaged, table)]
    if failure is not None and not reached and table.name == JOBS:
        raise failure


def _known(damaged: sqlite3.Connection, table: Table) -> set[tuple[Any, ...]]:
    """Returns the row keys found in at least half of the indices: an index may be damaged."""
    named = Counter[tuple[Any, ...]]()
    indices: list[str] = []
    with suppress(*FAULTS):
        indices = [row[1] for row in damaged.execute(f"pragma index_list({table.name})")]
    for index in indices:
        query = f"select {', '.join(table.key)} from {table.name} indexed by {index}"
        with suppress(*FAULTS):
            for key in _raw(damaged, query):
                named[key] += 1
    return {key for key, times in named.items() if 2 * times >= len(indices)}


def _put_aside(file: Path) -> Path:
    """Renames the store's files; returns the new name of the main file."""
    aside = file.with_name(f"{file.name}{DAMAGED}-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.partition('.n')[0]}.n{number}")
    for ending in SQLITE_SUFFIXES:
        with suppress(FileNotFoundError):
            file.with_name(f"{file.name}{ending}").rename(f"{aside}{ending}")
    return file.rename(aside)
