"""Stores templates in a folder that processes share, within a budget of bytes.

    all.lock        exclusive while sizes are counted, and names appear or disappear
    NAME/           a complete template; its manifest is locked while the template is used
    NAME.fill/      a template that a process fills, which locks the file `fill.lock` in it

No other state exists, so a process may be killed at any time: `NAME.fill` without a locked file and
`NAME` without a manifest are leftovers, and are removed.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from safetensors import SafetensorError, safe_open
from torch import Tensor

from katz_graph.core.messages import first_line
from katz_graph.executor.templates.budget import no_room
from katz_graph.executor.templates.manifest import (
    MANIFEST,
    VERSION,
    Manifest,
    StoredEvaluation,
    file_name,
    forms_of,
    header_damage,
    max_file_bytes,
    size_damage,
    write_evaluation,
)
from katz_graph.files.locks import exclusive, remove_unused, shared
from katz_graph.ir.reuse import shown_template

NAME = re.compile(r"[0-9a-f]{24}-[0-9a-f]{24}")
FILL_ENDING, FILL_LOCK, FOLDER_LOCK = ".fill", "fill.lock", "all.lock"
RESERVATION_BYTES = 20  # digits of a fill's reserved bytes, in its lock's file
DIGEST_BOUND = "0" * 64  # as long as the digest of a header

log = logging.getLogger("katz_graph")


@dataclass(frozen=True, slots=True)
class Found:
    """A complete template. `used`: seconds since the epoch."""

    manifest: Manifest
    used: float


@dataclass(frozen=True, slots=True)
class _Entry:
    """Bytes of a template or a fill in the folder; `used` is None for a fill."""

    path: Path
    size: int
    used: float | None


class TemplateFolder:
    """Stores templates in at most `budget_bytes`, their manifests included. Evicts the least
    recently used ones, except those that any process uses. Threads may share one.

    Creating one removes leftovers of killed processes, and templates beyond the budget.
    """

    def __init__(self, path: Path, budget_bytes: float) -> None:
        self.path, self.budget_bytes = path, budget_bytes
        self.evictions = 0
        self._lock = threading.Lock()
        if path.is_dir():
            with suppress(OSError), self._locked():  # `begin_fill` reports what cannot be written
                self._make_room(0)

    def begin_fill(
        self, name: str, evaluations: int, details: Mapping[str, str]
    ) -> FolderFill | None:
        """Returns None if the template is complete, or another thread or process fills it. OSError
        if the disk fails.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / f"{name}{FILL_ENDING}"
        with self._locked():
            self._remove_if_damaged(name)
            if any(entry.path in (path, self.path / name) for entry in self._entries()):
                return None
            with ExitStack() as undo:
                path.mkdir()
                undo.callback(shutil.rmtree, path, ignore_errors=True)
                lock = ExitStack()
                lock.enter_context(exclusive(path / FILL_LOCK))
                undo.pop_all()
        return FolderFill(self, path, name, evaluations, details, lock)

    def find(self, name: str) -> Found | None:
        """Returns a complete template; None if it is absent or a file has another size."""
        path = self.path / name / MANIFEST
        try:
            manifest = self._manifest(name, path.read_bytes())
            if size_damage(path.parent, manifest):
                return None
            return Found(manifest, _last_use(path))
        except (OSError, ValueError):
            return None

    def names(self) -> list[str]:
        """Returns the names of templates, damaged ones included."""
        try:
            return sorted(one.name for one in self.path.iterdir() if NAME.fullmatch(one.name))
        except OSError:
            return []

    @contextmanager
    def use(
        self, name: str, opens: Callable[[Manifest], bool]
    ) -> Iterator[tuple[Manifest, tuple[Any, ...]] | None]:
        """Yields a template's manifest, and its mapped files if `opens` returns true; None if the
        template is absent. Removes a damaged one, with a warning. The template is not evicted
        inside the `with` statement.
        """
        path = self.path / name / MANIFEST
        damaged = False
        with shared(path) as there:
            if there is not None:
                try:
                    manifest = self._manifest(name, there.read())
                    files = self._opened(path.parent, manifest, opens(manifest))
                except (OSError, ValueError):
                    damaged = True
                else:
                    _note_use(path)
                    yield manifest, files
                    return
        if damaged:
            with suppress(OSError), self._locked():
                self._remove_if_damaged(name)
        yield None

    def drop(self, name: str) -> bool:
        """Removes a template. Returns false if it is used."""
        with self._locked():
            return self._remove(self.path / name)

    def _manifest(self, name: str, text: bytes) -> Manifest:
        manifest = Manifest.parse(text)
        if manifest.name != name:
            raise ValueError("its manifest belongs to another template")
        return manifest

    def _opened(self, path: Path, manifest: Manifest, opens: bool) -> tuple[Any, ...]:
        """Maps the files of a template. Raises ValueError if one is damaged."""
        if damage := size_damage(path, manifest) or (opens and header_damage(path, manifest)):
            raise ValueError(damage)
        if not opens:
            return ()
        try:
            return tuple(
                safe_open(path / file_name(number), framework="pt")
                for number in range(len(manifest.evaluations))
            )
        except SafetensorError as error:
            raise ValueError(first_line(error)) from None

    def _remove_if_damaged(self, name: str) -> None:
        """Removes a damaged template, with a warning."""
        path = self.path / name
        with shared(path / MANIFEST) as there:
            if there is None:
                return
            try:
                self._opened(path, self._manifest(name, there.read()), True)
                return
            except (OSError, ValueError) as error:
                damage = first_line(error)
            (path / MANIFEST).unlink()
        log.warning("template %s is damaged and removed: %s", shown_template(name), damage)
        shutil.rmtree(path)

    def reserve(self, fill: Path, size: int) -> None:
        """Makes room for a fill of `size` bytes. Raises NoRoom if templates in use, or other
        fills, leave too little.
        """
        with self._locked():
            if not self._make_room(size, fill):
                raise no_room(size, self.budget_bytes, "the disk")
            (fill / FILL_LOCK).write_text(f"{size:{RESERVATION_BYTES}}")

    def publish(self, fill: Path, name: str) -> None:
        """Makes a complete fill a template."""
        with self._locked():
            self._entries()  # removes a leftover of this name
            (fill / FILL_LOCK).unlink()
            fill.rename(self.path / name)

    def discard(self, fill: Path) -> None:
        """Removes a fill; after an error, as much as possible."""
        with suppress(OSError), self._locked():
            shutil.rmtree(fill, ignore_errors=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock, exclusive(self.path / FOLDER_LOCK):
            yield

    def _make_room(self, needed: int, fill: Path | None = None) -> bool:
        """Evicts templates until `needed` bytes fit. Returns false if they do not fit."""
        entries = [entry for entry in self._entries() if entry.path != fill]
        total = needed + sum(entry.size for entry in entries)
        for entry in sorted(entries, key=lambda entry: entry.used or 0.0):
            if total <= self.budget_bytes or needed > self.budget_bytes:
                break
            if entry.used is not None and self._remove(entry.path):
                total -= entry.size
                self.evictions += 1
        return total <= self.budget_bytes

    def _entries(self) -> list[_Entry]:
        """Returns the templates and fills, and removes leftovers."""
        found = []
        for path in self.path.iterdir():
            name = path.name.removesuffix(FILL_ENDING)
            if not NAME.fullmatch(name) or path.is_symlink():
                continue
            try:
                if name != path.name:
                    if not remove_unused(path / FILL_LOCK):
                        reserved = int((path / FILL_LOCK).read_text() or 0)
                        found.append(_Entry(path, max(reserved, _size(path)), None))
                        continue
                elif (path / MANIFEST).exists():
                    found.append(_Entry(path, _size(path), _last_use(path / MANIFEST)))
                    continue
            except FileNotFoundError:  # its owner has just removed it
                continue
            shutil.rmtree(path)
        return found

    def _remove(self, path: Path) -> bool:
        """Removes a template; returns false if it is used."""
        if not remove_unused(path / MANIFEST):
            return False
        with suppress(FileNotFoundError):
            shutil.rmtree(path)
        return True


class FolderFill:
    """Writes a template's evaluations to a folder, within its budget."""

    def __init__(
        self,
        folder: TemplateFolder,
        path: Path,
        name: str,
        evaluations: int,
        details: Mapping[str, str],
        lock: ExitStack,
    ) -> None:
        self._folder, self._path, self._lock = folder, path, lock
        self._name, self._details, self._number = name, details, evaluations
        self._fill = uuid4().hex
        self._written: dict[int, StoredEvaluation] = {}
        self._reserved = 0

    def write(self, evaluation: int, tensors: Mapping[str, Tensor]) -> None:
        """Writes one evaluation's host tensors. Raises NoRoom if the template does not fit, OSError
        or SafetensorError if the disk fails.
        """
        layers = forms_of(tensors)
        size = max_file_bytes(layers, self._metadata(self._number))
        needed = self._planned(StoredEvaluation(size, DIGEST_BOUND, layers))
        if needed > self._reserved:
            self._folder.reserve(self._path, needed)
            self._reserved = needed
        self._written[evaluation] = write_evaluation(
            self._path / file_name(evaluation), tensors, self._metadata(evaluation)
        )

    def finish(self) -> None:
        """Makes the template available. Raises OSError if the disk fails."""
        with (self._path / MANIFEST).open("xb") as file:
            file.write(self._manifest(None).to_json())
            file.flush()
            os.fsync(file.fileno())
        self._folder.publish(self._path, self._name)
        self._lock.close()

    def discard(self) -> None:
        self._folder.discard(self._path)
        self._lock.close()

    def _planned(self, coming: StoredEvaluation) -> int:
        """Returns an upper bound of the fill's bytes, if the evaluations to come are like one."""
        manifest = self._manifest(coming)
        files = sum(one.size for one in manifest.evaluations)
        return files + len(manifest.to_json()) + RESERVATION_BYTES

    def _manifest(self, coming: StoredEvaluation | None) -> Manifest:
        written = (self._written.get(number, coming) for number in range(self._number))
        return Manifest(
            self._name, self._fill, self._details, tuple(one for one in written if one is not None)
        )

    def _metadata(self, evaluation: int) -> dict[str, str]:
        return {
            **self._details,
            "format": "pt",
            "version": str(VERSION),
            "template": self._name,
            "fill": self._fill,
            "evaluation": str(evaluation),
        }


def _size(path: Path) -> int:
    with os.scandir(path) as entries:
        return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)


def _last_use(path: Path) -> float:
    return path.stat().st_mtime


def _note_use(path: Path) -> None:
    """Records a use as the file's modification time, for eviction. Reading may change its access
    time.
    """
    with suppress(OSError):  # another user's file
        now = time.time_ns()
        os.utime(path, ns=(now, now))
