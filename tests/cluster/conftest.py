"""Fixtures of tests on several workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import Katz, use_threads

from katz_graph.executor import starting


@pytest.fixture
def katz_on_threads(katz: Katz, monkeypatch: pytest.MonkeyPatch, costs: Path) -> Katz:
    """`katz` whose workers are threads."""
    use_threads(monkeypatch, starting, costs)
    return katz
