"""Locks files between threads and processes of a host: by flock, which ends with the process that
holds it, and needs no file of its own. Must not know what the files are.
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

POLL = 0.05  # seconds between two looks at a lock that another one holds


def never() -> bool:
    return False


@contextmanager
def shared(path: Path) -> Iterator[BinaryIO | None]:
    """Opens a file to read; None when there is none. Nobody has it `exclusive` meanwhile."""
    with _locked(path, "rb", fcntl.LOCK_SH, never) as file:
        yield file


@contextmanager
def exclusive(path: Path, cancelled: Callable[[], bool] = never) -> Iterator[BinaryIO]:
    """Opens a file to read and write when nobody else has it; makes it when there is none.
    Cancelled as soon as `cancelled` says so.
    """
    with _locked(path, "a+b", fcntl.LOCK_EX, cancelled) as file:
        assert file is not None
        yield file


def remove_unused(path: Path) -> bool:
    """Removes a file that nobody has open by the functions above; tells whether it is gone."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, file):
                path.unlink()
    except FileNotFoundError:
        return True
    except OSError:  # somebody has it, or it is another user's
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
                continue  # removed or replaced meanwhile
            try:
                yield file  # type: ignore[misc]
                return
            finally:
                # also for children that this process has forked meanwhile
                fcntl.flock(file, fcntl.LOCK_UN)


def _wait_for(file: object, kind: int, path: Path, cancelled: Callable[[], bool]) -> None:
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)  # type: ignore[arg-type]
        except BlockingIOError:
            if cancelled():
                raise Cancelled(f"{path.name}: no longer wanted") from None
            time.sleep(POLL)


def _is_at(path: Path, file: object) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))  # type: ignore[attr-defined]
    except FileNotFoundError:
        return False
