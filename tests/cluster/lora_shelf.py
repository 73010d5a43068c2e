"""Delays the reading of LoRA files until a test releases them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from katz_graph.adapters.lora import LoraFile, read_lora
from katz_graph.core.errors import KatzError
from katz_graph.core.events import Event, Progress
from katz_graph.core.recipe import FileIdentity
from katz_graph.executor.graph.context import RunContext


@dataclass
class Shelf:
    """Reads each LoRA file once it is released, or raises the failure set for that file."""

    gates: dict[str, threading.Event] = field(default_factory=dict)
    failures: dict[str, KatzError] = field(default_factory=dict)
    read_file: Callable[[FileIdentity], LoraFile] = read_lora

    def read(self, file: FileIdentity, cancelled: Callable[[], bool]) -> LoraFile:
        gate = self.gates.get(file.path)
        assert gate is None or gate.wait(30)
        if file.path in self.failures:
            raise self.failures[file.path]
        return self.read_file(file)

    def hold(self, path: Path) -> threading.Event:
        self.gates[str(path)] = threading.Event()
        return self.gates[str(path)]


def when(context: RunContext, evaluations: int, do: Callable[[], None]) -> RunContext:
    """Returns a context that calls `do` after `evaluations` evaluations."""

    def listen(event: Event) -> None:
        if isinstance(event, Progress) and event.value == evaluations:
            do()

    return replace(context, listener=listen)
