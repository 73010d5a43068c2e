"""Fixtures for tests with several workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from command import Katz, use_threads
from lora_shelf import Shelf

from katz_graph.executor import start as starting
from katz_graph.executor.launch.fork_server import ForkServer
from katz_graph.executor.weights import adapters


@pytest.fixture(scope="session")
def fake_server() -> Iterator[ForkServer]:
    """Yields the fork server of fake workers, whose entry points are in `fake_worker`."""
    with ForkServer(
        module="fake_worker", prefix=("env", f"PYTHONPATH={Path(__file__).parent}")
    ) as server:
        server.begin()
        yield server


@pytest.fixture
def katz_on_threads(katz: Katz, monkeypatch: pytest.MonkeyPatch, costs: Path) -> Katz:
    """Returns a `katz` command whose workers are threads."""
    use_threads(monkeypatch, starting, costs)
    return katz


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    """Yields a shelf that reads LoRA files for all engines of the test."""
    shelf = Shelf()
    monkeypatch.setattr(adapters, "read_lora", shelf.read)
    yield shelf
    for gate in shelf.gates.values():
        gate.set()
