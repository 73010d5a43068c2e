"""Reads the weights of models to load into the system's page cache, while their device computes
something else.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from katz_graph.core.recipe import ClipRecipe, ControlNetRecipe, ModelRecipe, SeenPicture
from katz_graph.files.weights import is_weights
from katz_graph.host.memory import free_bytes
from katz_graph.models.loading.identity import header
from katz_graph.models.loading.loadable import Loadable
from katz_graph.models.loading.quantised import Header, tensor_entries

WINDOW_BYTES = 2**24  # read before the next decision
REQUEST_BYTES = 2**17  # the system limits requests to its read-ahead
PROBE_INTERVAL_BYTES = 2**22  # cached pages have neighbours
MAX_MEMORY_SHARE = 0.5  # of the host's free memory, for a model

Window = tuple[Path, range]
"""Names a file, and some of its bytes."""


@dataclass(slots=True, eq=False)
class _Wanted:
    """Holds a model to read. `windows`: the rest of its weights, None until the headers are read.
    `needs`: bytes of these, and of the host memory that loading will allocate.
    """

    run: float
    order: int
    model: Loadable
    windows: deque[Window] | None = None
    needs: int = 0


def order_of_use(recipe: object) -> int:
    """Returns when a run uses a model: text encoders, then networks, then other models."""
    if isinstance(recipe, (SeenPicture, ClipRecipe)):
        return 0
    return 1 if isinstance(recipe, (ModelRecipe, ControlNetRecipe)) else 2


class Prefetcher:
    """Reads files in a thread: those of the run that arrived first, in the order of their use.
    Loading then waits less for storage; nothing else changes: an error ends the reading of a model,
    and is raised by its loading.

    Skips cached parts of files, models that are loaded (`has`), and models that together with the
    weights to allocate take more than half of the host's free memory. `on_host`: the device's
    memory is the host's.
    """

    def __init__(
        self,
        has: Callable[[Hashable], bool],
        on_host: bool,
        free: Callable[[], float] = free_bytes,
    ) -> None:
        self._has, self._on_host, self._free = has, on_host, free
        self._wanted: list[_Wanted] = []
        self._lock = threading.Lock()
        self._reads = False  # whether the thread runs

    def want(self, models: Iterable[Loadable], run: float, order: int = 0) -> None:
        """Adds models, unless they are wanted already. `run`: the arrival of the run that uses
        them; `order`: when it does.
        """
        if not hasattr(os, "RWF_NOWAIT"):  # only Linux tells whether a file is cached
            return
        with self._lock:
            wanted = {one.model.key for one in self._wanted}
            self._wanted += [_Wanted(run, order, one) for one in models if one.key not in wanted]
            self._wanted.sort(key=lambda one: (one.run, one.order))
            if self._wanted and not self._reads:
                self._reads = True
                threading.Thread(target=self._read, name="katz-prefetch", daemon=True).start()

    def drop(self, run: float) -> None:
        """Stops reading for a run, after the current window."""
        with self._lock:
            self._wanted = [one for one in self._wanted if one.run != run]

    def _read(self) -> None:
        while (one := self._next()) is not None:
            with suppress(Exception):
                if self._advance(one):
                    continue
            with self._lock, suppress(ValueError):  # dropped meanwhile
                self._wanted.remove(one)

    def _next(self) -> _Wanted | None:
        with self._lock:
            self._wanted = [one for one in self._wanted if not self._has(one.model.key)]
            self._reads = bool(self._wanted)
            return self._wanted[0] if self._wanted else None

    def _advance(self, one: _Wanted) -> bool:
        """Reads the next window of a model. Returns whether another may follow."""
        if one.windows is None:
            one.windows = deque(_windows(one.model))
            one.needs = sum(len(window) for _, window in one.windows)
            one.needs += one.model.size() if self._on_host else 0
        if not one.windows:
            return False
        path, window = one.windows.popleft()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if not _is_cached(descriptor, window):
                if one.needs > MAX_MEMORY_SHARE * self._free():
                    return False
                _read_window(descriptor, window)
        finally:
            os.close(descriptor)
        one.needs -= len(window)
        return True


def _windows(model: Loadable) -> Iterator[Window]:
    """Yields the parts of a model's files with its weights, in the order of the files."""
    for file in model.files:
        if not is_weights(file.path):
            continue
        content = header(Path(file.path))
        begin = end = 0  # of adjacent tensors
        for first, last in sorted(
            entry["data_offsets"]
            for name, entry in tensor_entries(content.entries)
            if name.startswith(model.prefix)
        ):
            if first > end:
                yield from _split(content, begin, end)
                begin = first
            end = last
        yield from _split(content, begin, end)


def _split(content: Header, begin: int, end: int) -> Iterator[Window]:
    for first in range(content.begin + begin, content.begin + end, WINDOW_BYTES):
        yield content.path, range(first, min(first + WINDOW_BYTES, content.begin + end))


def _is_cached(descriptor: int, window: range) -> bool:
    """Returns whether samples of a window are in the page cache; false if the file system cannot
    tell.
    """
    probe = [bytearray(1)]
    try:
        for offset in (*window[::PROBE_INTERVAL_BYTES], window[-1]):
            os.preadv(descriptor, probe, offset, os.RWF_NOWAIT)
    except OSError:  # BlockingIOError: a page is missing
        return False
    return True


def _read_window(descriptor: int, window: range) -> None:
    """Starts reading all pages of a window, and waits for the last."""
    for offset in window[::REQUEST_BYTES]:
        size = min(REQUEST_BYTES, window.stop - offset)
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
    os.pread(descriptor, 1, window[-1])
