"""What one user's runs keep: results, the history that explains why nodes ran, and the objects that nodes keep for themselves."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from katz_graph.errors import InputError
from katz_graph.executor.results import Entry, Policy, Results
from katz_graph.executor.signature import Signature
from katz_graph.executor.why import History
from katz_graph.node import NodeType

__all__ = ["Entry", "ResultCache"]


class ResultCache:
    """`classic` drops after each run what the graphs of the last `runs` do not use; `lru` keeps the `limit` used last; `none` nothing.

    The object of a node stays while the node is in the graph of each run, unless nothing is kept. Runs that go on at the same time each
    need a cache of their own, made by `beside`; its results are shared.
    """

    def __init__(self, policy: Policy = "classic", limit: int = 0, runs: int = 1) -> None:
        self._results = Results(policy, limit, runs)
        self.history = History()  # what decided the results of the last run
        self._touched: set[Signature] | None = None  # by the run that is under way
        self._instances: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    @classmethod
    def parse(cls, text: str, runs: int = 1) -> ResultCache:
        """`classic`, `none`, or `lru:N`."""
        name, _, limit = text.partition(":")
        if name == "lru" and limit.isascii() and limit.isdigit() and len(limit) < 10 and int(limit) > 0:
            return cls("lru", int(limit))
        if text in ("classic", "none"):
            return cls(text, runs=runs)  # type: ignore[arg-type]
        raise InputError(f"cache policy {text!r} is not known; choose classic, lru:N (N results) or none")

    def beside(self) -> ResultCache:
        """One with the same results, and with a history and objects of its own."""
        other = ResultCache(self.policy)
        other._results = self._results
        return other

    @property
    def policy(self) -> Policy:
        return self._results.policy

    @property
    def limit(self) -> int:
        return self._results.limit

    def __len__(self) -> int:
        return len(self._results)

    def get(self, signature: Signature) -> Entry | None:
        return self._results.get(signature, self._touched)

    def put(self, signature: Signature, entry: Entry) -> None:
        self._results.put(signature, entry, self._touched)

    def clear(self) -> None:
        """Forget all results, also for those beside this one."""
        self._results.clear()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """What a run asks for inside stays until it is over, whatever runs beside it end before."""
        self._touched = touched = set[Signature]()
        try:
            with self._results.under_way(touched):
                yield
        finally:
            self._touched = None

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
        self._results.end_run(used)
