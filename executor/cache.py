"""Results of nodes by signature, and which of them are kept. Knows nothing of graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from katz_graph.errors import InputError
from katz_graph.executor.signature import Signature
from katz_graph.executor.why import History

Policy = Literal["classic", "lru", "none"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One node's outputs. `parts` are the signatures of the nodes that it expanded to: they are kept as long as it is."""

    outputs: tuple[Any, ...]
    parts: tuple[Signature, ...] = ()


class ResultCache:
    """`classic` drops after each run what that run's graph does not use; `lru` keeps the `limit` used last; `none` keeps nothing."""

    def __init__(self, policy: Policy = "classic", limit: int = 0) -> None:
        self.policy, self.limit = policy, limit
        self.history = History()  # what decided the results of the last run
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str) -> ResultCache:
        """`classic`, `none`, or `lru:N`."""
        name, _, limit = text.partition(":")
        if name == "lru" and limit.isascii() and limit.isdigit() and int(limit) > 0:
            return cls("lru", int(limit))
        if text in ("classic", "none"):
            return cls(text)  # type: ignore[arg-type]
        raise InputError(f"cache policy {text!r} is not known; choose classic, lru:N (N results) or none")

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: Signature) -> Entry | None:
        with self._lock:
            entry = self._entries.get(signature)
            if entry is not None:
                self._entries.move_to_end(signature)
            return entry

    def put(self, signature: Signature, entry: Entry) -> None:
        if self.policy == "none":
            return
        with self._lock:
            self._entries[signature] = entry
            self._entries.move_to_end(signature)
            while self.policy == "lru" and len(self._entries) > self.limit:
                self._entries.popitem(last=False)

    def end_run(self, used: Collection[Signature]) -> None:
        """A run is over; `used` are the signatures of its whole graph, whether they were asked for or not."""
        if self.policy != "classic":
            return
        with self._lock:
            pending, kept = list(used), set(used)
            while pending:
                entry = self._entries.get(pending.pop())
                fresh = [part for part in entry.parts if part not in kept] if entry else []
                kept.update(fresh)
                pending += fresh
            for signature in [known for known in self._entries if known not in kept]:
                del self._entries[signature]
