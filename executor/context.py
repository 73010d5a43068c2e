"""The services of one run of a graph, as nodes see them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from katz_graph.context import Engine
from katz_graph.errors import Cancelled, InputError
from katz_graph.events import Event, Listener
from katz_graph.folders import Folders


def _ignore(_: Any) -> None:
    return None


@dataclass(slots=True)
class RunContext:
    """What a graph run needs from outside. `files` and `warnings` collect what the run said."""

    engine: Engine
    folders: Folders
    output_directory: Path
    metadata: Mapping[str, str] = field(default_factory=dict)
    listener: Listener = _ignore
    on_warning: Callable[[str], None] = _ignore
    on_picture: Callable[[bytes], None] | None = None  # the client's end; None where there is no client
    files: list[Path] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def warn(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)
            self.on_warning(message)

    def report(self, event: Event) -> None:
        self.listener(event)

    def wrote(self, path: Path) -> None:
        self.files.append(path)

    def deliver(self, picture: bytes) -> None:
        if self.on_picture is None:
            raise InputError("sends pictures to the client of a server, and this run has none; use SaveImage instead")
        self.on_picture(picture)

    def cancel(self) -> None:
        self._cancelled.set()

    def check_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled("cancelled")
