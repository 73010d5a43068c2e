"""Keeps files that URLs name on this machine's disk, within a budget of bytes; each is fetched once
for all threads and processes that want it. Must not know what the files are for.

Of a file there are `KEY-NAME.safetensors`, whole and checked, or `KEY-NAME.safetensors.part`, which
whoever fetches it has locked; of its URL `KEY.identity`, what the server said last; and
`HASH.header`, which answers questions about its tensors without the file. Nothing else is kept, so
that a process may be killed at any time.
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
FRESH = 10.0  # seconds that the word of a server about its file counts
LEFT_BEHIND = 24 * 3600.0  # seconds after which nobody goes on with a part of a file
LONGEST_NAME = 100  # characters that are kept of a file's name
KEY = 24  # hexadecimal digits
RECORDED = "size", "modified_ns", "header", "version"  # of the identity of a URL's file
HASHED = 2**20  # bytes at once

log = logging.getLogger("katz_graph")


@dataclass(frozen=True, slots=True)
class FileCache:
    """The files of URLs below a folder, which together take `most_bytes`; beyond that those go that
    were used longest ago, except what is in use.

    `fresh`: seconds for which a server is not asked again what its file is. `fetcher`: the process
    that fetches files; None: this one does.
    """

    folder: Path
    most_bytes: float
    patience: Patience = PATIENCE
    fresh: float = FRESH
    fetcher: Fetcher | None = None

    @classmethod
    def of_this_machine(cls) -> FileCache:
        """Returns the cache that the environment names (KATZ_CACHE, KATZ_FETCHED_GB)."""
        return cls(*fetched_files(), fetcher=FETCHER)

    def identity(
        self, url: str, cancelled: Callable[[], bool] = never, rule: FetchRule = ANY
    ) -> FileIdentity:
        """Returns the identity of the file at a URL. Of the file no more than its header is read.
        Cancelled as soon as `cancelled` says so. `rule`: which URLs may be asked, also those that
        answers lead to.

        A server that cannot be asked does no harm where the file has been fetched before: it is
        taken as it was then. Otherwise errors as of `identify`.
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
            log.warning("%s: what was fetched before is used", shown(url))
            return known
        self._write(self._header(file), header)
        said = {name: getattr(file, name) for name in RECORDED}
        self._write(record, json.dumps(said).encode())
        self._make_room()
        return file

    def entries(self, file: FileIdentity) -> Mapping[str, Any]:
        """Returns the header of a file: names, types and shapes of its tensors. One that a URL
        names is not fetched for that. Changed when there is another file by now.
        """
        if not is_url(file.path):
            check_unchanged(file)
            return read_header(Path(file.path))[1]
        kept = self._header(file)
        try:
            header = kept.read_bytes()
            _note_use(kept)
        except OSError:
            header = b""
        if hashlib.sha256(header).hexdigest() != file.header:
            rule = FetchRule.parse(file.fetch) if file.fetch else ANY
            there, header = identify(file.path, self.patience, rule=rule)
            if there != file:
                raise Changed(file.path)
            self._write(kept, header)
        return parse_header(shown(file.path), header, file.size)

    def holds(self, file: FileIdentity) -> bool:
        """Tells whether the file at a URL has been fetched."""
        return self.place(file).exists()

    def place(self, file: FileIdentity) -> Path:
        """Returns where the file at a URL is kept. What it was made of is told by its name alone:
        another version, or another checksum, is another file.
        """
        made_of = address(file.path), file.size, file.header, file.version, checksum(file.path)
        name = without_ending(unquote(urlsplit(file.path).path).rpartition("/")[2])
        name = re.sub(r"[^\w.-]", "_", name)[-LONGEST_NAME:] or "file"
        return self.folder / f"{_key(repr(made_of))}-{name}{WHOLE}"

    def local_file(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> Path:
        """Returns the path of a file, of a URL when it has been fetched; errors as of `using`.

        It was used just now, so that others are evicted before it; who reads it for long, or shares
        the disk with many, takes `using`.
        """
        with self.using(file, cancelled) as path:
            return path

    @contextmanager
    def using(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> Iterator[Path]:
        """Yields the path of a file, of a URL when it has been fetched. It is not evicted inside
        the `with` statement; what has it open or mapped then may go on with it afterwards, since
        its bytes stay on the disk until nobody has.

        Of several that want one file, one fetches it. `cancelled` is asked meanwhile: when it says
        so, Cancelled is raised here, and another one goes on with the rest of the file.
        InputError when the file has changed since it was named, or is not what its checksum says;
        RunError when the network or the disk fails.
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
                            "%s: what was fetched before is damaged (%s): it is fetched again",
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
                    asked = self.folder, self.most_bytes, self.patience
                    self.fetcher.fetch(*asked, file, cancelled)
            except Changed:
                self._record(file.path).unlink(missing_ok=True)  # who asks again is told the news
                raise
            except OSError as error:
                raise RunError(
                    f"{shown(file.path)}: could not be fetched to {self.folder}: "
                    f"{error.strerror or error}"
                ) from None

    def fetch_here(self, file: FileIdentity, cancelled: Callable[[], bool] = never) -> None:
        """Fetches a file in this process, unless another one has meanwhile. Cancelled, InputError,
        RunError as for `using`; OSError is of the disk.
        """
        place = self.place(file)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{place.name}{PART}")
        with exclusive(part, cancelled) as opened:
            if place.exists():  # another one has fetched it meanwhile
                part.unlink()
                return
            try:
                self._make_room(max(0, file.size - part.stat().st_size))
                download(file, opened, cancelled, self.patience)
                os.fsync(opened.fileno())
                _check(file, part, opened, cancelled)
            except (Cancelled, RunError):
                if not file.version:  # whoever is next cannot go on with it
                    part.unlink()
                raise
            except BaseException:
                part.unlink()
                raise
            # its name says which file it is, so that the time need not: fetched again, it is the
            # same for all who have looked at it before
            os.utime(part, ns=(time.time_ns(), 0))
            part.replace(place)
            self._make_room()  # others may have been fetched at the same time

    def _make_room(self, coming: int = 0) -> None:
        """Removes what was used longest ago, until `coming` bytes fit as well, and what killed
        processes have left behind.
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
            while total > self.most_bytes:
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
        """Writes a small file whole or not at all."""
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
    """Returns the identity of the file at a URL, by this machine's cache (`FileCache.identity`)."""
    return FileCache.of_this_machine().identity(url, cancelled, rule)


def local_file(file: FileIdentity, cancelled: Callable[[], bool] = never) -> Path:
    """Returns the path of a file, by this machine's cache (`FileCache.local_file`)."""
    return FileCache.of_this_machine().local_file(file, cancelled)


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:KEY]


def _recorded(record: Path, url: str, fetch: tuple[str, ...]) -> tuple[FileIdentity | None, float]:
    """Returns what the server of a URL said last, and how many seconds ago that was."""
    try:
        said = json.loads(record.read_bytes())
        age = time.time() - record.stat().st_mtime
        _note_use(record)
        return FileIdentity(url, **said, fetch=fetch), age if age >= 0 else float("inf")
    except (OSError, ValueError, TypeError):
        return None, float("inf")


def _note_use(path: Path) -> None:
    """Notes a use in the file's time of access, which evictions go by."""
    try:
        os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
    except OSError:  # evicted meanwhile, or of another user
        return


def _used_file(path: Path) -> tuple[float, Path, int] | None:
    """Returns (time of last use in seconds, path, bytes) of a file of the cache; None for folders
    and locks.
    """
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    if path.suffix == LOCK or not stat.S_ISREG(state.st_mode):
        return None
    return max(state.st_atime, state.st_mtime), path, state.st_size


def _damage(place: Path, file: FileIdentity) -> str:
    """Says what is wrong with a file that has been fetched, by its size and header; nothing when it
    is whole.
    """
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
        return "its header is another one"
    return ""


def _check(file: FileIdentity, part: Path, opened: BinaryIO, cancelled: Callable[[], bool]) -> None:
    """Raises Changed when what came is not the file that was named, InputError when it is not what
    its checksum says.
    """
    if _damage(part, file):
        raise Changed(file.path)
    expected = checksum(file.path)
    if expected is None:
        return
    told = hashlib.sha256()
    opened.seek(0)
    while piece := opened.read(HASHED):
        if cancelled():
            raise Cancelled(f"{shown(file.path)}: no longer wanted")
        told.update(piece)
    if told.hexdigest() != expected:
        log.warning("%s: its SHA-256 is %s", shown(file.path), told.hexdigest())
        raise InputError(
            f"{shown(file.path)}: its SHA-256 is not {expected}: it is another file than the one "
            "that the checksum was made of"
        )
