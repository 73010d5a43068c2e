"""Results of nodes by signature, and which of them are kept. Several runs may share them at once. Knows nothing of graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from katz_graph.executor.shown import Shown
from katz_graph.executor.signature import Signature

Policy = Literal["classic", "lru", "none"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One node's outputs and what it has for editors. `parts` are the signatures of the nodes that it expanded to: they are kept as long
    as it is. `shown`: what nodes inside its expansion have for editors."""

    outputs: tuple[Any, ...]
    parts: tuple[Signature, ...] = ()
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()


class Results:
    """`classic` keeps what the graphs of the last `runs` runs use, and what runs that are under way have touched; `lru` the `limit` used
    last; `none` nothing."""

    def __init__(self, policy: Policy, limit: int = 0, runs: int = 1) -> None:
        self.policy, self.limit = policy, limit
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._now = 0  # counts runs that began
        self._touched: dict[Signature, int] = {}  # how many had begun when an entry was last asked for
        self._under_way: set[int] = set()
        self._used: deque[frozenset[Signature]] = deque(maxlen=runs)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: Signature) -> Entry | None:
        with self._lock:
            entry = self._entries.get(signature)
            if entry is not None:
                self._touch(signature)
            return entry

    def put(self, signature: Signature, entry: Entry) -> None:
        if self.policy == "none":
            return
        with self._lock:
            self._entries[signature] = entry
            self._touch(signature)
            while self.policy == "lru" and len(self._entries) > self.limit:
                oldest, _ = self._entries.popitem(last=False)
                del self._touched[oldest]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._touched.clear()
            self._used.clear()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """What a run asks for inside stays until it is over, whatever other runs end before."""
        with self._lock:
            self._now += 1
            mine = self._now
            self._under_way.add(mine)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(mine)

    def end_run(self, used: Collection[Signature]) -> None:
        """A run is over; `used` are the signatures of its whole graph, whether they were asked for or not."""
        if self.policy != "classic":
            return
        with self._lock:
            self._used.append(frozenset(used))
            since = min(self._under_way, default=self._now + 1)
            kept = set().union(*self._used, (known for known, when in self._touched.items() if when >= since))
            pending = list(kept)
            while pending:
                entry = self._entries.get(pending.pop())
                fresh = [part for part in entry.parts if part not in kept] if entry else []
                kept.update(fresh)
                pending += fresh
            for signature in [known for known in self._entries if known not in kept]:
                del self._entries[signature], self._touched[signature]

    def _touch(self, signature: Signature) -> None:
        self._entries.move_to_end(signature)
        self._touched[signature] = self._now
