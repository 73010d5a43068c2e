"""Reads the write-ahead log of an SQLite database before SQLite opens it. SQLite silently ends a
log at the first entry with a wrong checksum and drops the following entries
(sqlite.org/walformat.html).
"""

from __future__ import annotations

import struct
from pathlib import Path

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
BIG_ENDIAN, LITTLE_ENDIAN = 0x377F0683, 0x377F0682  # byte order of the checksums


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}-wal")


def commits(file: Path) -> list[int] | None:
    """Returns the numbers (from 1) of the frames that end a transaction, or None if the log's
    header is damaged.
    """
    try:
        data = log_of(file).read_bytes()
    except FileNotFoundError:
        return []
    if len(data) <= HEADER_BYTES:
        return []
    magic, _, page_bytes, _, *salts = struct.unpack_from(">6I", data)
    if not _header_is_whole(data, magic):
        return None
    found = []
    step = FRAME_HEADER_BYTES + page_bytes
    for number, at in enumerate(range(HEADER_BYTES, len(data) - step + 1, step), 1):
        _, pages_after_commit, *own = struct.unpack_from(">4I", data, at)
        # leftover frames of an earlier log differ in both salts
        if any(own[place] == salts[place] for place in (0, 1)) and pages_after_commit:
            found.append(number)
    return found


def _header_is_whole(data: bytes, magic: int) -> bool:
    if magic not in (BIG_ENDIAN, LITTLE_ENDIAN):
        return False
    words = struct.unpack_from(f"{'>' if magic == BIG_ENDIAN else '<'}6I", data)
    first = second = 0
    for place in range(0, len(words), 2):
        first = (first + words[place] + second) % 2**32
        second = (second + words[place + 1] + first) % 2**32
    return (first, second) == struct.unpack_from(">2I", data, 24)
