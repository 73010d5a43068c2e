"""Results of nodes by signature, and which of them are kept. Several runs may share them at once. Knows nothing of graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from katz_graph.executor.shown import Shown
from katz_graph.executor.signature import Signature

Policy = Literal["classic", "lru", "none"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One node's outputs and what it has for editors. `parts` are the signatures of the nodes that it expanded to: they are kept as long
    as it is. `shown`: what nodes inside its expansion have for editors. `files`: those that editors are told of, which it wrote."""

    outputs: tuple[Any, ...]
    parts: tuple[Signature, ...] = ()
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()
    files: tuple[Path, ...] = ()

    def lost(self) -> Path | None:
        """A file of it that is there no more: the result has to be made again."""
        return next((file for file in self.files if not file.is_file()), None)


class Results:
    """`classic` keeps what the graphs of the last `runs` runs use, and what runs that are under way have touched; `lru` the `limit` used
    last; `none` nothing. `touched`: the set that a run is `under_way` with."""

    def __init__(self, policy: Policy, limit: int = 0, runs: int = 1) -> None:
        self.policy, self.limit = policy, limit
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._under_way: list[set[Signature]] = []  # what each run has touched
        self._used: deque[frozenset[Signature]] = deque(maxlen=runs)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: Signature, touched: set[Signature] | None) -> Entry | None:
        with self._lock:
            entry = self._entries.get(signature)
            if entry is not None:
                self._touch(signature, touched)
            return entry

    def put(self, signature: Signature, entry: Entry, touched: set[Signature] | None) -> None:
        if self.policy == "none":
            return
        with self._lock:
            self._entries[signature] = entry
            self._touch(signature, touched)
            while self.policy == "lru" and len(self._entries) > self.limit:
                self._entries.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used.clear()

    @contextmanager
    def under_way(self, touched: set[Signature]) -> Iterator[None]:
        """What a run asks for inside with this set stays until it is over, whatever other runs end before."""
        with self._lock:
            self._under_way.append(touched)
        try:
            yield
        finally:
            with self._lock:
                self._under_way = [other for other in self._under_way if other is not touched]

    def end_run(self, used: Collection[Signature]) -> None:
        """A run is over; `used` are the signatures of its whole graph, whether they were asked for or not."""
        if self.policy != "classic":
            return
        with self._lock:
            self._used.append(frozenset(used))
            kept = set().union(*self._used, *self._under_way)
            pending = list(kept)
            while pending:
                entry = self._entries.get(pending.pop())
                fresh = [part for part in entry.parts if part not in kept] if entry else []
                kept.update(fresh)
                pending += fresh
            for signature in [known for known in self._entries if known not in kept]:
                del self._entries[signature]

    def _touch(self, signature: Signature, touched: set[Signature] | None) -> None:
        self._entries.move_to_end(signature)
        if touched is not None:
            touched.add(signature)
