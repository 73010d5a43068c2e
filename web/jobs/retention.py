"""Deletes files of finished and aborted jobs, and selects the jobs to forget. Never touches files
that are not on record.

Forgetting a job deletes only its temporary files; a user's outputs stay.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from katz_graph.files.output_files import UNFINISHED
from katz_graph.web.events import Ended
from katz_graph.web.jobs.records import StoredFile
from katz_graph.web.jobs.store import JobStore
from katz_graph.web.options import MB

DAY = 86_400.0
KEY_RETENTION_S = DAY  # seconds that an Idempotency-Key outlives its forgotten job
TEMPORARY = "temp"
ROOM_BYTES = 64 * MB  # free bytes that each disk needs before jobs start again
ABANDONED = 3_600.0  # seconds without a change after which an unfinished file counts as abandoned


@dataclass(frozen=True, slots=True)
class Retention:
    """Limits the retention of finished jobs; None means no limit. `bytes` limits their files in the
    temporary folder.
    """

    days: float | None = None
    bytes: int | None = None


class JobFiles:
    """Finds and deletes files in the folders that jobs write to: `output` and `temp`. `store` is
    the job store's folder.
    """

    def __init__(self, folders: Mapping[str, Path], store: Path) -> None:
        self._folders = {place: folder.resolve() for place, folder in folders.items()}
        self._store = store.resolve()

    def have_room(self) -> bool:
        """Returns whether all disks have room for jobs and their files."""
        with suppress(OSError):
            for folder in (*self._folders.values(), self._store):
                while not folder.exists():
                    folder = folder.parent
                if shutil.disk_usage(folder).free < ROOM_BYTES:
                    return False
        return True

    def delete(self, files: Iterable[StoredFile]) -> None:
        """Deletes files, and temporary folders that become empty. Ignores files that are already
        deleted. Logs files that cannot be deleted.
        """
        for file in files:
            path = self.path(file)
            if path is None:
                continue
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                logging.getLogger(__name__).warning(
                    "cannot delete %s file %s: %s", file.place, file.path, error.strerror
                )
                continue
            if file.place == TEMPORARY:
                self._drop_empty(path.parent)

    def sized(self, files: Iterable[StoredFile]) -> list[StoredFile]:
        """Returns the files with their sizes."""
        return [StoredFile(file.place, file.path, self._size(file)) for file in files]

    def path(self, file: StoredFile) -> Path | None:
        """Returns a file's path, or None if its name leads out of its folder."""
        folder = self._folders.get(file.place)
        if folder is None or "\0" in file.path:
            return None
        path = folder / file.path
        inside = path.parent.resolve().is_relative_to(folder) and path.name not in ("", "..")
        return path if inside and not PurePosixPath(file.path).is_absolute() else None

    def _size(self, file: StoredFile) -> int:
        path = self.path(file)
        with suppress(OSError):
            return path.stat().st_size if path is not None else 0
        return 0

    def _drop_empty(self, folder: Path) -> None:
        with suppress(OSError):  # not empty
            while folder.resolve() != self._folders[TEMPORARY]:
                folder.rmdir()
                folder = folder.parent


def temporary(job: Ended, wrote: Iterable[StoredFile]) -> list[StoredFile]:
    """Returns the temporary files that a job wrote or shows. They are deleted when the job is
    forgotten.
    """
    named = {file.path for file in (*wrote, *shown_files(job)) if file.place == TEMPORARY}
    return [StoredFile(TEMPORARY, path) for path in sorted(named)]


async def outdated(store: JobStore, retention: Retention, count: int, now: float) -> Sequence[str]:
    """Returns the finished jobs to forget: those that are too old, exceed `count`, or exceed the
    byte limit of temporary files.
    """
    ids = dict.fromkeys(await store.surplus(count))
    if retention.days is not None:
        ids |= dict.fromkeys(await store.finished_before(now - retention.days * DAY))
    if retention.bytes is not None:
        ids |= dict.fromkeys(await store.oversized(retention.bytes))
    return list(ids)


def drop_unfinished(folders: Iterable[Path], now: float) -> None:
    """Deletes unfinished files of killed processes in these folders. Keeps recently changed files
    because other processes may be writing them.
    """
    for folder in folders:
        for inside, _, names in os.walk(folder):
            for name in filter(UNFINISHED.fullmatch, names):
                path = Path(inside, name)
                with suppress(OSError):
                    if now - path.lstat().st_mtime > ABANDONED:
                        path.unlink()


def shown_files(job: Ended) -> Iterator[StoredFile]:
    """Yields the files that a job's outputs name, in the editors' format `{"filename", "subfolder",
    "type"}`. Packs may name files that do not exist.
    """
    yield from (file for _, file in shown_by(job))


def shown_by(job: Ended) -> Iterator[tuple[str, StoredFile]]:
    """Yields the files that a job's outputs name, each with the id of the node that shows it."""
    for node, kinds in job.outputs.items():
        for entries in kinds.values():
            yield from ((node, file) for entry in entries if (file := _shown(entry)) is not None)


def _shown(entry: Any) -> StoredFile | None:
    if not isinstance(entry, Mapping):
        return None
    place, name, subfolder = (entry.get(key) for key in ("type", "filename", "subfolder"))
    if not isinstance(place, str) or not isinstance(name, str):
        return None
    inside = isinstance(subfolder, str) and subfolder
    return StoredFile(place, f"{subfolder}/{name}" if inside else name)
