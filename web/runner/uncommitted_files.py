"""Deletes files of jobs whose end the server will never put on record, so that a job that runs
again writes them once.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class UncommittedFiles:
    """Tracks unrecorded files by job. Any thread may ask."""

    def __init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        self._lock = threading.Lock()

    def add(self, job: str, file: Path) -> None:
        with self._lock:
            self._files.setdefault(job, []).append(file)

    def keep(self, job: str) -> None:
        """Releases a job's files: it has ended, and the server will remember it."""
        with self._lock:
            self._files.pop(job, None)

    def delete(self) -> None:
        """Deletes the files of all other jobs. Keeps the lock: nothing more is written under it."""
        self._lock.acquire()
        for file in (file for files in self._files.values() for file in files):
            with contextlib.suppress(OSError):
                file.unlink()
