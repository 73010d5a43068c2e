"""Results of nodes by signature, and which of them are kept; and the objects that nodes keep for themselves. Knows nothing of graphs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from katz_graph.errors import InputError
from katz_graph.executor.shown import Shown
from katz_graph.executor.signature import Signature
from katz_graph.executor.why import History
from katz_graph.node import NodeType

Policy = Literal["classic", "lru", "none"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One node's outputs and what it has for editors. `parts` are the signatures of the nodes that it expanded to: they are kept as long
    as it is. `shown`: what nodes inside its expansion have for editors."""

    outputs: tuple[Any, ...]
    parts: tuple[Signature, ...] = ()
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()


class ResultCache:
    """`classic` drops after each run what that run's graph does not use; `lru` keeps the `limit` used last; `none` keeps nothing.

    The object of a node stays while the node is in the graph of each run, unless nothing is kept.
    """

    def __init__(self, policy: Policy = "classic", limit: int = 0) -> None:
        self.policy, self.limit = policy, limit
        self.history = History()  # what decided the results of the last run
        self._entries: OrderedDict[Signature, Entry] = OrderedDict()
        self._instances: dict[tuple[str, str], Any] = {}
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

    def instance(self, node: str, kind: NodeType) -> Any:
        """The object of a node of this type, made when it is first asked for."""
        assert kind.instance is not None
        key = node, kind.name
        with self._lock:
            if key not in self._instances:
                self._instances[key] = kind.instance()
            return self._instances[key]

    def end_run(self, used: Collection[Signature], nodes: Iterable[tuple[str, str]] = ()) -> None:
        """A run is over; `used` are the signatures of its whole graph, whether they were asked for or not, `nodes` ids and types."""
        with self._lock:
            if self._instances:
                self._instances = {} if self.policy == "none" else {key: self._instances[key] for key in nodes if key in self._instances}
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
