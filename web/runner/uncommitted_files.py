"""Deletes files of jobs without a recorded end, so that a retried job does not write them twice."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path


class UncommittedFiles:
    """Tracks unrecorded files by job. Thread-safe."""

    def __init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        self._lock = threading.Lock()

    def add(self, job: str, file: Path) -> None:
        with self._lock:
            self._files.setdefault(job, []).append(file)

    def keep(self, job: str) -> None:
        """Keeps a job's files: the job has ended and the server has recorded it."""
        with self._lock:
            self._files.pop(job, None)

    def delete(self) -> None:
        """Deletes the files of all other jobs. Never releases the lock, so that no further file is
        added.
        """
        self._lock.acquire()
        for file in (file for files in self._files.values() for file in files):
            with contextlib.suppress(OSError):
                file.unlink()
