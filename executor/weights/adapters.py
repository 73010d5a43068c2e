"""Loads LoRA files in background threads, and caches them within a budget of bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

from katz_graph.adapters.lora import LoraFile, read_lora
from katz_graph.core.eviction import LeastRecentlyUsed
from katz_graph.core.recipe import FileIdentity
from katz_graph.models.loading.residency import AdapterUse

FILE_BYTES = 2**30  # default budget for cached LoRA files

Result = TypeVar("Result")
Read = Callable[[FileIdentity, Callable[[], bool]], LoraFile]
"""Reads a file, which may take long; the second argument returns whether all users have released
the file.
"""


@dataclass(slots=True, eq=False)
class _Entry:
    """A file that is cached or being read; `users` counts its requests."""

    future: Future[LoraFile] = field(default_factory=Future)
    users: int = 0
    unwanted: threading.Event = field(default_factory=threading.Event)
    size: int = 0  # bytes, once it is read
    seconds: float = 0.0  # spent on reading it


class AdapterStore:
    """Reads each LoRA file once for all users, several files at a time. Files in use stay cached;
    of the others the least recently used are evicted first.
    """

    def __init__(self, budget: float = FILE_BYTES, read: Read | None = None) -> None:
        self._budget, self._read = budget, read
        self._entries: dict[FileIdentity, _Entry] = {}
        self._order = LeastRecentlyUsed()
        self._lock = threading.Lock()
        self.hits = self.misses = self.evictions = 0
        self.seconds = 0.0  # spent on reading all files

    def want(
        self, files: Iterable[FileIdentity], changed: Callable[[], None] = lambda: None
    ) -> WantedAdapters:
        """Starts reading files that are not cached. Calls `changed`, in any thread, for each file
        that is read or has failed. The caller must release the result.
        """
        entries: dict[FileIdentity, _Entry] = {}
        here: set[FileIdentity] = set()
        for file in dict.fromkeys(files):
            with self._lock:
                if file in self._entries:
                    here.add(file)
                entries[file] = self._taken(file)
        with self._lock:
            self.hits += len(here)
        for entry in entries.values():
            entry.future.add_done_callback(lambda _: changed())
        return WantedAdapters(self, entries, here)

    def get(self, file: FileIdentity) -> LoraFile:
        """Waits for a file and returns it. Raises the error of its reading."""
        with self._lock:
            entry = self._taken(file)
        try:
            return entry.future.result()
        finally:
            self.give_back(file, entry)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Runs `work` in a separate thread."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="katz-adapter", daemon=True).start()
        return done

    def use(self, merges: int = 0, merge_seconds: float = 0.0) -> AdapterUse:
        """Returns the cache's size and counts of hits, misses and evictions, with the caller's
        merges.
        """
        with self._lock:
            return AdapterUse(
                self.hits,
                self.misses,
                self.evictions,
                self.seconds,
                self._held(),
                self._budget,
                merges,
                merge_seconds,
            )

    def _held(self) -> int:
        return sum(entry.size for entry in self._entries.values())

    def _taken(self, file: FileIdentity) -> _Entry:
        entry = self._entries.get(file)
        if entry is None:
            self.misses += 1
            entry = self._entries[file] = _Entry()
            threading.Thread(
                target=self._load, args=(file, entry), name="katz-adapter", daemon=True
            ).start()
        entry.users += 1
        self._order.used(file)
        return entry

    def _load(self, file: FileIdentity, entry: _Entry) -> None:
        started = time.perf_counter()
        try:
            read = (self._read or read_lora)(file, entry.unwanted.is_set)
        except BaseException as error:
            with self._lock:
                self._forget(file, entry)
            entry.future.set_exception(error)
        else:
            with self._lock:
                entry.size, entry.seconds = read.bytes, time.perf_counter() - started
                self.seconds += entry.seconds
                self._trim()
            entry.future.set_result(read)

    def give_back(self, file: FileIdentity, entry: _Entry) -> None:
        """Releases one use of a file. Cancels reading if no use remains."""
        with self._lock:
            if self._entries.get(file) is not entry:
                return  # reading failed
            entry.users -= 1
            if not entry.users and not entry.future.done():
                entry.unwanted.set()
                self._forget(file, entry)
            self._trim()

    def _forget(self, file: FileIdentity, entry: _Entry) -> None:
        """Removes a file from the cache, unless it is already being read again."""
        if self._entries.get(file) is entry:
            del self._entries[file]
            self._order.removed(file)

    def _trim(self) -> None:
        """Evicts unused files until the cache is within the budget."""
        held = self._held()
        wanted = frozenset(file for file, entry in self._entries.items() if entry.users)
        while held > self._budget and isinstance(
            victim := self._order.victim(wanted), FileIdentity
        ):
            entry = self._entries[victim]
            held -= entry.size
            self.evictions += 1
            self._forget(victim, entry)


class WantedAdapters:
    """Holds the files that a request uses, until `release`."""

    def __init__(
        self,
        store: AdapterStore,
        entries: Mapping[FileIdentity, _Entry],
        here: Collection[FileIdentity],
    ) -> None:
        self._store, self._entries, self._here = store, dict(entries), here

    def have(self, files: Iterable[FileIdentity]) -> bool:
        """Returns whether these files have been read or have failed."""
        return all(self._entries[file].future.done() for file in files)

    @property
    def files(self) -> Iterable[FileIdentity]:
        return self._entries

    @property
    def seconds(self) -> Mapping[FileIdentity, float]:
        """Returns the reading times of the files that were not cached when requested."""
        return {
            file: entry.seconds
            for file, entry in self._entries.items()
            if file not in self._here and entry.future.done()
        }

    def get(self, file: FileIdentity) -> LoraFile:
        """Waits for a file and returns it. Raises the error of its reading."""
        return self._entries[file].future.result()

    def check(self) -> None:
        """Raises the error of a file that could not be read, if any."""
        for entry in self._entries.values():
            if entry.future.done():
                entry.future.result()

    def release(self) -> None:
        """Releases all files; does nothing when called again."""
        entries, self._entries = self._entries, {}
        for file, entry in entries.items():
            self._store.give_back(file, entry)
