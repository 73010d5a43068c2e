"""Caches files from URLs on this machine's disk, within a budget of bytes. Fetches each file once
for all threads and processes. Must not know the use of the files.

A file is stored as `KEY-NAME.safetensors`, whole and checked, or `KEY-NAME.safetensors.part`,
locked while fetched. `KEY.identity` has the server's last report about a URL. `HASH.header` has a
file's header, to describe tensors without the file. No other state exists, so a process may be
killed at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from katz_graph.core.errors import Cancelled, InputError, RunError
from katz_graph.core.eviction import POLICIES
from katz_graph.core.recipe import FileIdentity
from katz_graph.files.locks import exclusive, never, remove_unused, shared
from katz_graph.files.urls import ANY, FetchRule, address, checksum, is_url, shown
from katz_graph.files.weights import USUAL_ENDING, without_ending
from katz_graph.models.fetching.fetch import (
    PATIENCE,
    Changed,
    Patience,
    download,
    identify,
)
from katz_graph.models.fetching.fetcher import FETCHER, Fetcher
from katz_graph.models.loading.identity import check_unchanged, parse_header, read_header
from katz_graph.settings.environment import fetched_files

WHOLE, PART, NEW, LOCK = USUAL_ENDING, ".part", ".new", ".lock"
FRESH = 10.0  # seconds that a server's report stays valid
LEFT_BEHIND = 24 * 3600.0  # seconds after which an unused partial file is removed
LONGEST_NAME = 100  # characters of a file's name
KEY = 24  # hexadecimal digits
RECORDED = "size", "modified_ns", "header", "version"  # fields of the identity in a record
HASHED = 2**20  # bytes per read

log = logging.getLogger("katz_graph")


@dataclass(frozen=True, slots=True)
class FileCache:
    """Caches the files of URLs in a folder, in at most `max_bytes`. Beyond that, evicts the least
    recently used files, except those in use.

    `fresh`: seconds that a server's report stays valid. `fetcher`: the process that fetches files,
    None for this process.
    """

    folder: Path
    max_bytes: float
    patience: Patience = PATIENCE
    fresh: float = FRESH
    fetcher: Fetcher | None = None

    @classmethod
    def of_this_machine(cls) -> FileCache:
        """Returns the cache configured by the environment (KATZ_CACHE, KATZ_FETCHED_GB)."""
        return cls(*fetched_files(), fetcher=FETCHER)

    def identity(
        self, url: str, cancelled: Callable[[], bool] = never, rule: FetchRule = ANY
    ) -> FileIdentity:
        """Returns the identity of the file at a URL; reads no more than its header. Raises
        Cancelled when `cancelled` returns true. `rule`: the permitted URLs, redirects included.

        If the server fails, returns the identity of the cached file, if any. Otherwise raises the
        errors of `identify`.
        """
        record = self._record(url)
        known, age = _recorded(record, url, rule.naming(url).words)
        if known is not None and age < self.fresh:
            return known
        try:
            file, header = identify(url, self.patience, cancelled, rule)
        except RunError:
            if known is None or not self.holds(known):
                raise
            log.warning("%s: using the cached file", shown(url))
            return known
        self._write(self._header(file), header)
        said = {name: getattr(file, name) for name in RECORDED}
        self._write(record, json.dumps(said).encode())
        self._make_room()
        return file

    def entries(self, file: FileIdentity) -> Mapping[str, Any]:
        """Returns the header of a file: names, dtypes and shapes of its tensors. Does not fetch the
        file of a URL. Raises Changed if the URL now has another file, InputError if a local one
        changed.
        """
        if not is_url(file.path):
            check_unchanged(file)
            return read_header(Path(file.path))[1]
        path = self._header(file)
        try:
            header = path.read_bytes()
            _note_use(path)
        except OSError:
            header = b""
        if hashlib.sha256(header).hexdigest() != file.header:
            rule = FetchRule.parse(file.fetch) if file.fetch else ANY
            there, header = identify(file.path, self.patience, rule=rule)
            if there != file:
                raise Changed(file.path)
            self._write(path, header)
        return parse_header(shown(file.path), header, file.size)

    def holds(self, file: FileIdentity) -> bool:
        """Returns whether the file at a URL is in the cache."""
        return self.place(file).exists()

    def place(self, file: FileIdentity) -> Path:
        """Returns the cache path of the file at a URL. The path depends on URL, size, header,
        version and checksum.
        """
        made_of = address(file.path), file.size, file.header, file.version, checksum(file.path)
        name = without_ending(unquote(urlsplit(file.path).path).rpartition("/")[2])
        name = re.sub(r"[^\w.-]", "_", name)[-LONGEST_NAME:] or "file"
        return self.folder / f"{_key(repr(made_of))}-{name}{WHOLE}"

    def local_file(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> Path:
        """Returns the path of a file, and fetches it first if it has a URL. Raises the errors of
        `using`.

        Other files are evicted before the file just used. Callers that read a file for long or
        share the disk with many others should call `using`.
        """
        with self.using(file, cancelled) as path:
            return path

    @contextmanager
    def using(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> Iterator[Path]:
        """Yields the path of a file, and fetches it first if it has a URL. The file is not evicted
        inside the `with` statement. Files opened or mapped inside remain readable afterwards,
        because their bytes stay on disk until closed.

        One of several concurrent callers fetches the file. When `cancelled` returns true, raises
        Cancelled, and another caller resumes the download. Raises InputError if the file has
        changed since it was identified or does not match its checksum; RunError if the network or
        the disk fails.
        """
        if not is_url(file.path):
            check_unchanged(file)
            yield Path(file.path)
            return
        place = self.place(file)
        while True:
            with shared(place) as there:
                if there is not None:
                    if damage := _damage(place, file):
                        log.warning(
                            "%s: the cached file is damaged (%s): fetching it again",
                            shown(file.path),
                            damage,
                        )
                        place.unlink(missing_ok=True)
                    else:
                        _note_use(place)
                        yield place
                        return
            try:
                if self.fetcher is None:
                    self.fetch_here(file, cancelled)
                else:
                    asked = self.folder, self.max_bytes, self.patience
                    self.fetcher.fetch(*asked, file, cancelled)
            except Changed:
                self._record(file.path).unlink(missing_ok=True)  # a retry asks the server again
                raise
            except OSError as error:
                raise RunError(
                    f"{shown(file.path)}: could not be fetched to {self.folder}: "
                    f"{error.strerror or error}"
                ) from None

    def fetch_here(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> None:
        """Fetches a file in this process, unless another process has just done so. Raises
        Cancelled, InputError and RunError like `using`; OSError is a disk error.
        """
        place = self.place(file)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}{PART}")
        with exclusive(part, cancelled) as opened:
            if place.exists():  # another process has just fetched it
                part.unlink()
                return
            try:
                self._make_room(max(0, file.size - part.stat().st_size))
                download(file, opened, cancelled, self.patience)
                os.fsync(opened.fileno())
                _check(file, part, opened, cancelled)
            except (Cancelled, RunError):
                if not file.version:  # cannot be resumed
                    part.unlink()
                raise
            except BaseException:
                part.unlink()
                raise
            # sets a constant modification time: the name identifies the file, and readers must not
            # mistake a new download for a change
            os.utime(part, ns=(time.time_ns(), 0))
            part.replace(place)
            self._make_room()  # other files may have been fetched at the same time

    def _make_room(self, coming: int = 0) -> None:
        """Removes the least recently used files until `coming` bytes fit, and killed processes' old
        partial files.
        """
        with exclusive(self.folder / f"all{LOCK}"):
            here = [found for path in self.folder.rglob("*") if (found := _used_file(path))]
            policy, now = POLICIES["lru"](), time.time()
            sizes: dict[Path, int] = {}
            for used, path, size in sorted(here):
                if path.suffix in (PART, NEW) and now - used > LEFT_BEHIND:
                    remove_unused(path)
                    continue
                policy.used(path)
                sizes[path] = size
            total, spared = sum(sizes.values()) + coming, set[Path]()
            while total > self.max_bytes:
                victim = policy.victim(frozenset(spared))
                if not isinstance(victim, Path):
                    return
                if remove_unused(victim):
                    policy.removed(victim)
                    total -= sizes[victim]
                else:
                    spared.add(victim)

    def _record(self, url: str) -> Path:
        return self.folder / f"{_key(address(url))}.identity"

    def _header(self, file: FileIdentity) -> Path:
        return self.folder / f"{file.header}.header"

    def _write(self, path: Path, content: bytes) -> None:
        """Writes a small file atomically. Raises RunError if the disk fails."""
        new = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}{NEW}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                new.write_bytes(content)
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be written to: {error.strerror}") from None


def remote_identity(
    url: str, cancelled: Callable[[], bool] = never, rule: FetchRule = ANY
) -> FileIdentity:
    """Returns the identity of the file at a URL, see `FileCache.identity`."""
    return FileCache.of_this_machine().identity(url, cancelled, rule)


def local_file(file: FileIdentity, cancelled: Callable[[], bool] = never) -> Path:
    """Returns the path of a file, see `FileCache.local_file`."""
    return FileCache.of_this_machine().local_file(file, cancelled)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY]


def _recorded(record: Path, url: str, fetch: tuple[str, ...]) -> tuple[FileIdentity | None, float]:
    """Returns the identity last reported for a URL (None without one), and its age in seconds."""
    try:
        said = json.loads(record.read_bytes())
        age = time.time() - record.stat().st_mtime
        _note_use(record)
        return FileIdentity(url, **said, fetch=fetch), age if age >= 0 else float("inf")
    except (OSError, ValueError, TypeError):
        return None, float("inf")


def _note_use(path: Path) -> None:
    """Records a use as the file's access time, for eviction."""
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except OSError:  # just evicted, or another user's file
        return


def _used_file(path: Path) -> tuple[float, Path, int] | None:
    """Returns (last use in seconds, path, bytes) of a cached file; None for folders and locks."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if path.suffix == LOCK or not stat.S_ISREG(state.st_mode):
        return None
    return max(state.st_atime, state.st_mtime), path, state.st_size


def _damage(place: Path, file: FileIdentity) -> str:
    """Describes the damage of a fetched file, from its size and header; empty if it is whole."""
    try:
        header, _ = read_header(place)
    except InputError as problem:
        return str(problem).removeprefix(f"{place}: ")
    except OSError as error:
        return str(error.strerror)
    size = place.stat().st_size
    if size != file.size:
        return f"it has {size:,} bytes, expected {file.size:,}"
    if hashlib.sha256(header).hexdigest() != file.header:
        return "its header differs"
    return ""


def _check(file: FileIdentity, part: Path, opened: BinaryIO, cancelled: Callable[[], bool]) -> None:
    """Raises Changed if the download does not match the file's identity, InputError if it does not
    match the checksum.
    """
    if _damage(part, file):
        raise Changed(file.path)
    expected = checksum(file.path)
    if expected is None:
        return
    digest = hashlib.sha256()
    opened.seek(0)
    while piece := opened.read(HASHED):
        if cancelled():
            raise Cancelled(f"{shown(file.path)}: no longer needed")
        digest.update(piece)
    if digest.hexdigest() != expected:
        log.warning("%s: its SHA-256 is %s", shown(file.path), digest.hexdigest())
        raise InputError(
            f"{shown(file.path)}: its SHA-256 is not {expected}: check the URL and the checksum"
        )
