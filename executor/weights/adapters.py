"""Loads LoRA files in threads of their own, beside the one that computes, and keeps what was read
within a budget of bytes.
"""

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

FILE_BYTES = 2**30  # that LoRA files which were read may take, unless said otherwise

Result = TypeVar("Result")
Read = Callable[[FileIdentity, Callable[[], bool]], LoraFile]
"""Reads a file, which may take long; its second argument says when nobody wants it any longer."""


@dataclass(slots=True, eq=False)
class _Entry:
    """A file that is here, or on its way; `users` want it."""

    future: Future[LoraFile] = field(default_factory=Future)
    users: int = 0
    unwanted: threading.Event = field(default_factory=threading.Event)
    size: int = 0  # bytes, once it is here
    seconds: float = 0.0  # that reading it took


class AdapterStore:
    """Has each LoRA file read once for all who want it, several at a time. What somebody wants
    stays; of the rest, what was used longest ago goes first.
    """

    def __init__(self, budget: float = FILE_BYTES, read: Read | None = None) -> None:
        self._budget, self._read = budget, read
        self._entries: dict[FileIdentity, _Entry] = {}
        self._order = LeastRecentlyUsed()
        self._lock = threading.Lock()
        self.hits = self.misses = self.evictions = 0
        self.seconds = 0.0  # that reading took, all files together

    def want(
        self, files: Iterable[FileIdentity], changed: Callable[[], None] = lambda: None
    ) -> WantedAdapters:
        """Begins to load files that are not there. `changed` is called, in any thread, for each one
        that has come or failed. Release what is returned.
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
        """Returns a file; waits until it is there. Raises why it could not be read."""
        with self._lock:
            entry = self._taken(file)
        try:
            return entry.future.result()
        finally:
            self.give_back(file, entry)

    def beside(self, work: Callable[[], Result]) -> Future[Result]:
        """Does something in a thread of its own."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, name="katz-adapter", daemon=True).start()
        return done

    def use(self, merges: int = 0, merge_seconds: float = 0.0) -> AdapterUse:
        """Returns what is here, and what came and went; with how often what is here was merged."""
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
        """Takes one want of a file back. What nobody wants is no longer waited for."""
        with self._lock:
            if self._entries.get(file) is not entry:
                return  # it failed
            entry.users -= 1
            if not entry.users and not entry.future.done():
                entry.unwanted.set()
                self._forget(file, entry)
            self._trim()

    def _forget(self, file: FileIdentity, entry: _Entry) -> None:
        """Forgets a file, unless it is on its way anew by now."""
        if self._entries.get(file) is entry:
            del self._entries[file]
            self._order.removed(file)

    def _trim(self) -> None:
        """Lets go of files that nobody wants until the rest is within the budget."""
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
    """Holds the files that a request wants until `release`."""

    def __init__(
        self,
        store: AdapterStore,
        entries: Mapping[FileIdentity, _Entry],
        here: Collection[FileIdentity],
    ) -> None:
        self._store, self._entries, self._here = store, dict(entries), here

    def have(self, files: Iterable[FileIdentity]) -> bool:
        """Returns whether these have come, or failed."""
        return all(self._entries[file].future.done() for file in files)

    @property
    def files(self) -> Iterable[FileIdentity]:
        return self._entries

    @property
    def seconds(self) -> Mapping[FileIdentity, float]:
        """Returns what reading took, of the files that were not here when they were wanted."""
        return {
            file: entry.seconds
            for file, entry in self._entries.items()
            if file not in self._here and entry.future.done()
        }

    def get(self, file: FileIdentity) -> LoraFile:
        """Returns a file; waits until it is there. Raises why it could not be read."""
        return self._entries[file].future.result()

    def check(self) -> None:
        """Raises why one of them could not be read, if one could not."""
        for entry in self._entries.values():
            if entry.future.done():
                entry.future.result()

    def release(self) -> None:
        """Wants them no longer; a second time it does nothing."""
        entries, self._entries = self._entries, {}
        for file, entry in entries.items():
            self._store.give_back(file, entry)
