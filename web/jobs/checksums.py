"""Stores a checksum in each row of a database to detect damaged rows. Must not know the meaning of
the tables.

SQLite verifies the structure of its pages, but not the bytes of a text in them.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

COLUMN = "checksum"  # of every table; null in rows written before checksums existed
FUNCTION = "row_checksum"


@dataclass(frozen=True, slots=True)
class Table:
    """Describes a table: its columns without the checksum, and its key columns."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def tables(connection: sqlite3.Connection, key_of: dict[str, tuple[str, ...]]) -> list[Table]:
    """Describes the tables named in `key_of`."""
    return [
        Table(
            name,
            tuple(
                sorted(
                    row[1]
                    for row in connection.execute(f"pragma table_info({name})")
                    if row[1] != COLUMN
                )
            ),
            key,
        )
        for name, key in key_of.items()
    ]


def keep_checksums(connection: sqlite3.Connection, described: Sequence[Table]) -> None:
    """Adds triggers that update the checksum of each row written over this connection."""
    connection.create_function(FUNCTION, -1, _checksum)
    for table in described:
        values = ", ".join(table.columns)
        where = " and ".join(f"{name} = new.{name}" for name in table.key)
        renew = f"update {table.name} set {COLUMN} = {FUNCTION}({values}) where {where}"
        for when in ("insert", f"update of {values}"):
            connection.execute(
                f"create temp trigger {table.name}_{when.split()[0]} after {when} on "
                f"main.{table.name} begin {renew}; end"
            )


def is_whole(row: Sequence[Any]) -> bool:
    """Verifies a row: all columns of a `Table`, followed by its checksum."""
    *values, stored = row
    return stored is None or stored == _checksum(*values)


def all_columns(table: Table) -> str:
    """Returns the column list of a query for rows that `is_whole` verifies."""
    return f"{', '.join(table.columns)}, {COLUMN}"


def _checksum(*values: Any) -> int:
    total = 0
    for value in values:
        for piece in _bytes_of(value):
            total = zlib.crc32(piece, total)
    return total


def _bytes_of(value: Any) -> Iterator[bytes]:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if isinstance(value, bytes):
        yield b"b%d:" % len(value)
        yield value
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    else:
        yield b"%r;" % (value,)
