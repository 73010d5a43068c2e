"""Provides the services of one run of a graph to its nodes."""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from katz_graph.core.allowed_approximations import allowed_names
from katz_graph.core.errors import Cancelled, InputError
from katz_graph.core.events import Event, Listener, Sampled, Warned
from katz_graph.executor.graph.run_stats import RunStats, provenance_of
from katz_graph.files.folders import Folders
from katz_graph.host.run_lock import RunLock
from katz_graph.ir.changes import PlanChanges
from katz_graph.node.scope import current
from katz_graph.node.types import Engine, NodeType
from katz_graph.packs import builtin_types

PREVIEWS_APART = 0.25  # minimum seconds between two previews of one node


def _ignore(_: Any) -> None:
    return None


@contextmanager
def writing_nothing(context: RunContext) -> Iterator[None]:
    """Redirects node output to a temporary folder, which is deleted afterwards, for runs that only
    plan or measure.
    """
    with tempfile.TemporaryDirectory(prefix="katz-") as folder:
        context.output_directory = Path(folder)
        yield


@dataclass(slots=True)
class RunContext:
    """Carries the external services of a graph run. `types`: node types, by default the built-in
    ones. `files`, `warnings` and `measured` collect the reports of the run.

    Any thread may cancel it. `previews`: samplers show preview images, at most four a second per
    node.
    """

    engine: Engine
    folders: Folders
    output_directory: Path
    metadata: Mapping[str, str] = field(default_factory=dict)
    listener: Listener = _ignore
    # sends images to the client; None without a client
    on_picture: Callable[[bytes], None] | None = None
    previews: bool = False
    progress_interval: float = 0.0  # minimum seconds between two reports of evaluations
    on_file: Callable[[Path], None] = _ignore
    files: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    measured: RunStats = field(default_factory=RunStats)
    types: Mapping[str, NodeType] = field(default_factory=builtin_types)
    changes: PlanChanges = field(default_factory=PlanChanges)
    clock: Callable[[], float] = time.monotonic
    # devices serve the run that arrived first; on the clock of `time.monotonic`
    arrival: float = field(default_factory=time.monotonic)
    due: float = math.inf  # on the same clock; inf: none
    # by the end node of a sampler: predicted seconds of the run after its last evaluation
    seconds_after: Mapping[str, float] = field(default_factory=dict)
    client: str = ""  # clients share devices equally
    pack_lock: RunLock = field(default_factory=RunLock)  # shared by the runs of a process
    _shown: dict[str, float] = field(default_factory=dict)  # time of each node's last preview
    _cancelled: bool = False
    _on_cancel: dict[object, Callable[[], None]] = field(default_factory=dict)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def allowed(self) -> frozenset[str]:
        chosen = self.changes.allow
        return self.engine.allowed if chosen is None else allowed_names(chosen)

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            self.listener(Warned(message))

    def report(self, event: Event) -> None:
        if self._cancelled:
            return  # workers may still send events after the cancellation
        self.measured.listen(event)
        if isinstance(event, Sampled) and (now := current()) is not None:
            now.sampled.append(replace(provenance_of(event), chosen=self.changes.overrides()))
        self.listener(event)

    def wants_preview(self, node: str) -> bool:
        now = self.clock()
        wanted = self.previews and now - self._shown.get(node, -math.inf) >= PREVIEWS_APART
        if wanted:
            self._shown[node] = now
        return wanted

    def wrote(self, path: Path) -> None:
        self.files.append(path)
        self.on_file(path)

    def deliver(self, picture: bytes) -> None:
        if self.on_picture is None:
            raise InputError(
                "sends pictures to a server's client, and this run has no server; use SaveImage "
                "instead"
            )
        self.on_picture(picture)

    def cancel(self) -> None:
        """Cancels the run, which ends soon, and interrupts all waits."""
        with self._lock:
            self._cancelled = True
            waiting = list(self._on_cancel.values())
        for act in waiting:
            act()

    def check_cancelled(self) -> None:
        if self._cancelled:
            raise Cancelled("cancelled")

    def in_pack_code(self) -> AbstractContextManager[None]:
        return self.pack_lock.held(self.arrival, self.check_cancelled)

    def waiting(self) -> AbstractContextManager[None]:
        return self.pack_lock.released(self.arrival, self.check_cancelled)

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        key = object()
        with self._lock:
            self._on_cancel[key] = act
            cancelled = self._cancelled
        if cancelled:
            act()
        return lambda: self._forget(key)

    def _forget(self, key: object) -> None:
        with self._lock:
            self._on_cancel.pop(key, None)
