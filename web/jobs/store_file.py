"""Opens the job store's file: makes it where there is none, and rescues the rows of a damaged one.
Must not know what jobs are done with.
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
BESIDE = ("-wal", "-shm")  # SQLite's own files
# Python fails to decode an error of SQLite's that quotes a damaged name
FAULTS = (sqlite3.Error, UnicodeDecodeError)


def open_to_write(file: Path, new: bool) -> tuple[sqlite3.Connection, list[str]]:
    """Opens the store's file, and makes it where there is none. Returns also a line for each thing
    that is wrong with it and was put right. `new`: no server has used its folder before. Raises
    RunError, sqlite3.Error or OSError when it cannot be used.
    """
    notes: list[str] = []
    logged = commits(file)
    if not file.exists():
        if not new and logged == []:
            notes.append(
                f"{file}: the job store is missing, though its folder is not new: an empty one is "
                "begun"
            )
        _create(file)
    elif file.stat().st_size == 0:
        aside = _put_aside(file)
        notes.append(
            f"{file}: the job store is empty, though it is not new: its jobs are lost; an empty "
            f"one is begun, and {aside.name} is what was there"
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
    """Explains an error of the store to people. Never quotes SQLite, whose words may hold a text of
    a row.
    """
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
            f"{file}: the job store is damaged ({name}); it was left as it is: move it away to "
            "begin with an empty one"
        )
    return RunError(f"{file}: the job store cannot be used ({name})")


def _create(file: Path) -> None:
    """Makes an empty store, whole or not at all."""
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
    """Decodes a text of a row: one that is damaged later on raises nothing that quotes it."""
    return data.decode("utf-8", "replace")


def _bring_up_to_date(connection: sqlite3.Connection, file: Path) -> None:
    """Changes the tables of an earlier version. Raises RunError for those of another one, and
    sqlite3.Error where they are not what their version says.
    """
    (version,) = connection.execute("pragma user_version").fetchone()
    if version in EARLIER:
        connection.executescript(
            f"begin immediate; {EARLIER[version]} pragma user_version = {VERSION}; commit;"
        )
    elif version != VERSION:
        raise RunError(
            f"{file}: written by another version of Katz Graph, or damaged (tables {version}, ours "
            f"{VERSION}); choose another --data"
        )


def _lost_entries(
    connection: sqlite3.Connection, file: Path, logged: Sequence[int] | None
) -> list[str]:
    """Writes a line if entries of the log, which had these commits, were not taken in."""
    _, frames, _ = connection.execute("pragma wal_checkpoint(passive)").fetchone()
    if logged is None:
        return [f"{file}: the job store's log cannot be read: what it recorded last is lost"]
    lost = sum(number > frames for number in logged)
    what = f"the last {lost} of {len(logged)} entries of the job store's log cannot be read"
    return [f"{file}: {what}: what they recorded is lost"] if lost else []


def _damage(connection: sqlite3.Connection, file: Path) -> str:
    """Says what is wrong with the pages or a row; nothing when all is well. Raises RunError where
    tables are missing or others than they were made.
    """
    if _shape(connection) != _new_shape():
        raise RunError(
            f"{file}: the job store is damaged (its tables are not as they were made); it was left "
            "as it is: move it away to begin with an empty one"
        )
    try:
        if connection.execute("pragma integrity_check(1)").fetchall() != [("ok",)]:
            return "its pages contradict each other"
        for table in tables(connection, KEYS):
            rows = _raw(connection, f"select {all_columns(table)} from {table.name}")
            if wrong := sum(not _readable(table, row) for row in rows):
                return f"{wrong} rows of {table.name} are not what was written"
    except FAULTS as error:
        return str(getattr(error, "sqlite_errorname", "unreadable"))
    return ""


def _new_shape() -> set[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(SCHEMA)
        return _shape(fresh)


def _shape(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    """Returns what decides how rows are read: columns with their types, and columns of indices."""
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
    """Yields the rows of a query, texts as bytes."""
    connection.text_factory = bytes
    try:
        yield from connection.execute(query, values)
    finally:
        connection.text_factory = _text


def _readable(table: Table, row: Sequence[Any]) -> bool:
    return is_whole(row) and readable(table.name, dict(zip(table.columns, row, strict=False)))


def _rescue(file: Path, why: str) -> str:
    """Moves a damaged store aside and begins a new one with the rows that can be read. Returns the
    line that says so. Where no job can be read all is left as it is, and sqlite3.Error raised.
    """
    new = file.with_name(f"{file.name}{NEW}")
    _create(new)
    kept = []
    with closing(_connect(file)) as damaged, closing(_connect(new)) as fresh:
        for table in tables(fresh, KEYS):
            copied, lost = _copy(damaged, fresh, table)
            if copied or lost:
                kept.append(f"{copied:,} of {copied + lost:,} {table.name}")
    aside = _put_aside(file)
    new.replace(file)
    return (
        f"{file}: the job store was damaged ({why}): kept {', '.join(kept) or 'nothing'}; the "
        f"damaged one is {aside.name}"
    )


def _copy(damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: Table) -> tuple[int, int]:
    """Copies the rows of a table that can be read. Returns how many, and how many cannot."""
    rows: dict[tuple[Any, ...], Sequence[Any]] = {}
    lost: set[tuple[Any, ...]] = set()
    places = [table.columns.index(name) for name in table.key]
    for row in _found(damaged, table):
        key = tuple(row[place] for place in places)
        if _readable(table, row):
            rows.setdefault(key, row)
        else:
            lost.add(key)
    lost = (_known(damaged, table) or lost) - set(rows)  # a damaged row's key may be one of none
    statement = (
        f"insert into {table.name} ({all_columns(table)}) values "
        f"({', '.join('?' * (len(table.columns) + 1))})"
    )
    copied = 0
    fresh.execute("begin immediate")
    for row in rows.values():
        # of two rows with one id one is damaged
        with suppress(sqlite3.IntegrityError):
            fresh.execute(statement, decoded([*table.columns, COLUMN], row))
            copied += 1
    fresh.execute("commit")
    return copied, len(lost) + len(rows) - copied


def _found(damaged: sqlite3.Connection, table: Table) -> Iterator[Sequence[Any]]:
    """Yields the rows of a table that can be reached: from both ends, and by the keys that indices
    have. Some come more than once. Raises sqlite3.Error when there are none for an error.
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
                return  # to its end
        except FAULTS as error:
            failure = error
        if number == 1:
            queries += [(one, decoded(table.key, key)) for key in _known(damaged, table)]
    if failure is not None and not reached and table.name == JOBS:
        raise failure


def _known(damaged: sqlite3.Connection, table: Table) -> set[tuple[Any, ...]]:
    """Returns the keys of rows that at least half of the indices name: an index may be damaged."""
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
    """Renames the store's files, and returns the new name of the first."""
    aside = file.with_name(f"{file.name}{DAMAGED}-{time.strftime('%Y%m%d-%H%M%S')}")
    number = 1
    while aside.exists():
        number += 1
        aside = aside.with_name(f"{aside.name.partition('.n')[0]}.n{number}")
    for ending in BESIDE:
        with suppress(FileNotFoundError):
            file.with_name(f"{file.name}{ending}").rename(f"{aside}{ending}")
    return file.rename(aside)
