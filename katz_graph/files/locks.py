"""Locks files between threads and processes of a host with flock. A lock ends with its process, and
needs no separate lock file. Must not know the contents of the files.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from katz_graph.core.errors import Cancelled

POLL = 0.05  # seconds between attempts to acquire a held lock


def never() -> bool:
    return False


@contextmanager
def shared(path: Path) -> Iterator[BinaryIO | None]:
    """Opens a file for reading under a shared lock; yields None if the file does not exist. Waits
    while another holder has an `exclusive` lock.
    """
    with _locked(path, "rb", fcntl.LOCK_SH, never) as file:
        yield file


@contextmanager
def exclusive(path: Path, cancelled: Callable[[], bool] = never) -> Iterator[BinaryIO]:
    """Opens a file for reading and writing under an exclusive lock; creates the file if needed.
    Raises Cancelled if `cancelled` returns True during the wait.
    """
    with _locked(path, "a+b", fcntl.LOCK_EX, cancelled) as file:
        assert file is not None
        yield file


def remove_unused(path: Path) -> bool:
    """Removes a file unless `shared` or `exclusive` holds it; returns whether the file is
    deleted.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                path.unlink()
    except FileNotFoundError:
        return True
    except OSError:  # it is locked, or owned by another user
        return False
    return True


@contextmanager
def _locked(
    path: Path, mode: str, kind: int, cancelled: Callable[[], bool]
) -> Iterator[BinaryIO | None]:
    while True:
        try:
            file = path.open(mode)
        except FileNotFoundError:
            if kind == fcntl.LOCK_EX:
                raise
            yield None
            return
        with file:
            _wait_for(file, kind, path, cancelled)
            if not _is_at(path, file):
                continue  # removed or replaced during the wait
            try:
                yield file  # type: ignore[misc]
                return
            finally:
                # forked children inherit the descriptor, so closing it would not unlock the file
                fcntl.flock(file, fcntl.LOCK_UN)


def _wait_for(file: object, kind: int, path: Path, cancelled: Callable[[], bool]) -> None:
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)  # type: ignore[arg-type]
        except BlockingIOError:
            if cancelled():
                raise Cancelled(f"{path.name}: no longer needed") from None
            time.sleep(POLL)


def _is_at(path: Path, file: object) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))  # type: ignore[attr-defined]
    except FileNotFoundError:
        return False
