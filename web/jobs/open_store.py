"""Opens a data folder's job store for one server alone, makes its tables, and explains its errors
in one line.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from katz_graph.errors import RunError
from katz_graph.web.jobs.records import SCHEMA, VERSION, WHOLE
from katz_graph.web.options import RUNNER_LOCK

FILE = "katz.sqlite3"
LOCK = "server.lock"
PATIENCE = 5.0  # seconds for another server to end
RUNNER_PATIENCE = 60.0  # seconds for the runner of a server that was killed to clean up and end


@dataclass(frozen=True, slots=True)
class Opened:
    """An open store: its file, one connection for the thread that writes and one for the thread
    that reads, and the lock that keeps other servers off.
    """

    file: Path
    lock: FileLock
    writing: sqlite3.Connection
    reading: sqlite3.Connection


def open_folder(folder: Path) -> Opened:
    """Opens the store of a data folder, and makes it where there is none. Raises RunError when the
    folder is in use, cannot be written, or its store is damaged.
    """
    file = folder / FILE
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
        with FileLock(folder / RUNNER_LOCK, timeout=RUNNER_PATIENCE, thread_local=False):
            return Opened(file, lock, _writing(file), _reading(file))
    except Timeout:
        if lock.is_locked:
            lock.release()
            raise RunError(f"{folder}: the runner of an earlier katz serve still runs (it holds {RUNNER_LOCK}); end it first") from None
        raise RunError(f"{folder}: another katz serve uses this data folder; stop it, or choose another one with --data") from None
    except OSError as error:
        lock.release()
        raise RunError(f"{folder}: the data folder cannot be written: {error.strerror or error}; choose another one with --data") from None
    except sqlite3.Error as error:
        lock.release()
        raise explained(file, error) from None
    except RunError:
        lock.release()
        raise


def explained(file: Path, error: sqlite3.Error) -> RunError:
    """Explains an error of the store to people."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return RunError(f"{file}: the disk is full; jobs are neither accepted nor started until there is room")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return RunError(f"{file}: the job store is damaged ({error}); it was left as it is: move it away to begin with an empty one")
    return RunError(f"{file}: the job store cannot be used: {error}")


def _writing(file: Path) -> sqlite3.Connection:
    os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))  # prompts are nobody else's business
    connection = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("pragma auto_vacuum = incremental")
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        (version,) = connection.execute("pragma user_version").fetchone()
        if version == 0:
            connection.executescript(f"begin immediate; {SCHEMA} pragma user_version = {VERSION}; commit;")
        elif version != VERSION:
            raise RunError(f"{file}: written by another version of Katz Graph (tables {version}, ours {VERSION}); choose another --data")
        connection.execute(f"select {WHOLE}, finished from jobs limit 1").fetchall()
    except BaseException:
        connection.close()
        raise
    return connection


def _reading(file: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False)
