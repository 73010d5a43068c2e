"""A short part `store` of `katz bench edit`."""

from __future__ import annotations

import pytest

from katz_graph.bench.edit_store import store
from katz_graph.testing import random_templates


def test_random_operations_are_counted_and_violations_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    result = store(4)
    assert result.ok and result.metrics["store_kills"] == 4 and result.metrics["store_fills"] > 0
    monkeypatch.setattr(random_templates, "folder_bytes", lambda folder: 10**9)
    result = store(2)
    assert not result.ok and "1000000000 bytes on the disk, the budget is" in result.notes[0]
