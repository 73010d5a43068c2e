"""Caches results of nodes by signature, and evicts them by policy. Concurrent runs may share them.
Must not know graphs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from katz_graph.core.errors import InputError
from katz_graph.core.eviction import POLICIES
from katz_graph.executor.graph.expansion_ui import Shown
from katz_graph.executor.graph.explain import History
from katz_graph.executor.graph.signature import Signature
from katz_graph.ir.provenance import EXACT, Provenance
from katz_graph.node.types import NodeType
from katz_graph.settings.options import COUNTED

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResultEntry:
    """Holds the result of one node."""

    outputs: tuple[Any, ...]
    # signatures of the nodes that it expanded to; their entries live as long as this one
    parts: tuple[Signature, ...] = ()
    ui: Mapping[str, Sequence[Any]] | None = None
    shown: tuple[Shown, ...] = ()  # UI output of nodes inside its expansion
    files: tuple[Path, ...] = ()  # files that it wrote and reported to editors
    provenance: Provenance = EXACT  # the part that the signature does not determine

    def lost(self) -> Path | None:
        """Returns a deleted file of the entry, which invalidates the result; None if all exist."""
        return next((file for file in self.files if not file.is_file()), None)


@contextmanager
def _listed(own: set[T], current: list[set[T]], lock: threading.Lock) -> Iterator[None]:
    """Lists a run's set among those of all current runs."""
    with lock:
        current.append(own)
    try:
        yield
    finally:
        with lock:
            current[:] = [other for other in current if other is not own]


class Results:
    """Stores results. `classic` retains the results used by the graphs of the last `runs` runs, and
    those touched by current runs; an eviction policy retains `limit` results; `none` retains
    nothing. `touched`: the set that the run passed to `under_way`.
    """

    def __init__(self, policy: str, limit: int = 0, runs: int = 1) -> None:
        self.policy, self.limit = policy, limit
        self._entries: dict[Hashable, ResultEntry] = {}
        self._eviction = POLICIES[policy]() if policy in POLICIES else None
        self._lock = threading.Lock()
        self._under_way: list[set[Signature]] = []  # signatures touched by each current run
        self._used: deque[frozenset[Signature]] = deque(maxlen=runs)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, signature: Signature, touched: set[Signature] | None) -> ResultEntry | None:
        with self._lock:
            entry = self._entries.get(signature)
            if entry is not None:
                self._touch(signature, touched)
            return entry

    def put(self, signature: Signature, entry: ResultEntry, touched: set[Signature] | None) -> None:
        """Stores a result. An approximate result does not replace an exact one, which all runs may
        use.
        """
        if self.policy == "none":
            return
        with self._lock:
            known = self._entries.get(signature)
            if (
                entry.provenance.approximations
                and known is not None
                and not known.provenance.approximations
                and known.lost() is None
            ):
                entry = known
            if self._eviction is not None and signature not in self._entries:
                while len(self._entries) >= self.limit:
                    self._evict(self._eviction.victim(frozenset()))
            self._entries[signature] = entry
            self._touch(signature, touched)

    def clear(self) -> None:
        with self._lock:
            for signature in list(self._entries):
                self._evict(signature)
            self._used.clear()

    def under_way(self, touched: set[Signature]) -> AbstractContextManager[None]:
        """Retains the results that a run touches until it ends, even if other runs end earlier."""
        return _listed(touched, self._under_way, self._lock)

    def end_run(self, used: Collection[Signature]) -> None:
        """Ends a run; `classic` evicts then. `used`: the signatures of its whole graph, requested
        or not.
        """
        if self.policy != "classic":
            return
        with self._lock:
            self._used.append(frozenset(used))
            live = set().union(*self._used, *self._under_way)
            pending = list(live)
            while pending:
                entry = self._entries.get(pending.pop())
                fresh = [part for part in entry.parts if part not in live] if entry else []
                live.update(fresh)
                pending += fresh
            for signature in [known for known in self._entries if known not in live]:
                self._evict(signature)

    def _touch(self, signature: Signature, touched: set[Signature] | None) -> None:
        if self._eviction is not None:
            self._eviction.used(signature)
        if touched is not None:
            touched.add(signature)

    def _evict(self, signature: Hashable) -> None:
        del self._entries[signature]
        if self._eviction is not None:
            self._eviction.removed(signature)


__all__ = ["ResultCache", "ResultEntry"]


class UserState:
    """Holds what a user's runs leave to later ones: the cache-key inputs of the last run, and the
    instance objects of nodes, by node and type. Concurrent runs of the user share it.
    """

    def __init__(self) -> None:
        self.history = History()
        self._objects: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        self._in_use: list[set[tuple[str, str]]] = []  # objects used by each current run

    def under_way(self, used: set[tuple[str, str]]) -> AbstractContextManager[None]:
        """Retains the objects that a run uses until it ends, even if other runs end earlier."""
        return _listed(used, self._in_use, self._lock)

    def instance(self, node: str, kind: NodeType, used: set[tuple[str, str]]) -> Any:
        """Returns the instance object of a node of this type, created at first use."""
        assert kind.instance is not None
        key = node, kind.name
        with self._lock:
            used.add(key)
            if key not in self._objects:
                self._objects[key] = kind.instance()
            return self._objects[key]

    def end_run(self, nodes: Iterable[tuple[str, str]], used: set[tuple[str, str]]) -> None:
        """Drops the objects of nodes that are neither in the graph of the run that ends nor used by
        another run. Clears `used`, the set of the run that ends.
        """
        with self._lock:
            used.clear()
            if self._objects:
                live = set(nodes).union(*self._in_use)
                self._objects = {key: one for key, one in self._objects.items() if key in live}


class ResultCache:
    """Caches results for successive runs. `classic` drops, after each run, results not used by the
    graphs of the last `runs` runs; an eviction policy retains `limit` results; `none` retains
    nothing.

    A node's instance object lives while successive graphs contain the node, unless the policy is
    `none`. Each concurrent run needs a cache from `fork`, which shares the results.
    """

    def __init__(self, policy: str = "classic", limit: int = 0, runs: int = 1) -> None:
        self._results = Results(policy, limit, runs)
        self._user = UserState()
        self._touched: set[Signature] | None = None  # signatures touched by the current run
        self._used = set[tuple[str, str]]()  # instance objects used by the current run

    @classmethod
    def parse(cls, text: str, runs: int = 1) -> ResultCache:
        """Parses `classic`, `none`, or `NAME:N` of an eviction policy."""
        name, _, limit = text.partition(":")
        if (
            name in POLICIES
            and limit.isascii()
            and limit.isdigit()
            and len(limit) < 10
            and int(limit) > 0
        ):
            return cls(name, int(limit))
        if text in ("classic", "none"):
            return cls(text, runs=runs)
        raise InputError(
            f"unknown cache policy {text!r}; choose classic, {COUNTED} (N results) or none"
        )

    def fork(self, same_user: bool = False) -> ResultCache:
        """Returns a cache that shares the results. Its history and instance objects are separate,
        unless it is for another run of the same user.
        """
        other = ResultCache(self.policy)
        other._results = self._results
        if same_user:
            other._user = self._user
        return other

    @property
    def history(self) -> History:
        """Returns the cache-key inputs of the user's last run."""
        return self._user.history

    @history.setter
    def history(self, history: History) -> None:
        self._user.history = history

    @property
    def policy(self) -> str:
        return self._results.policy

    @property
    def limit(self) -> int:
        return self._results.limit

    def __len__(self) -> int:
        return len(self._results)

    def get(self, signature: Signature) -> ResultEntry | None:
        return self._results.get(signature, self._touched)

    def put(self, signature: Signature, entry: ResultEntry) -> None:
        self._results.put(signature, entry, self._touched)

    def clear(self) -> None:
        """Drops all results, including those of caches that share them."""
        self._results.clear()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Retains the results that a run touches until it ends, even if concurrent runs end
        earlier.
        """
        self._touched = touched = set[Signature]()
        try:
            with self._results.under_way(touched), self._user.under_way(self._used):
                yield
        finally:
            self._touched = None

    def instance(self, node: str, kind: NodeType) -> Any:
        """Returns the instance object of a node of this type, created at first use."""
        return self._user.instance(node, kind, self._used)

    def end_run(self, used: Collection[Signature], nodes: Iterable[tuple[str, str]] = ()) -> None:
        """Ends a run. `used`: the signatures of its whole graph, requested or not; `nodes`: ids and
        types.
        """
        self._user.end_run(() if self.policy == "none" else nodes, self._used)
        self._results.end_run(used)
