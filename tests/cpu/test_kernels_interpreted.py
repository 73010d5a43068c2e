"""Runs the kernel tests in a separate process, because Triton reads TRITON_INTERPRET when a kernel
is declared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from katz_graph.kernels import dispatch

TESTS = Path(__file__).parent.parent / "interpreted"


def test_kernels_match_their_references() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", str(TESTS)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-4000:]
    assert "SKIPPED" not in done.stdout


def test_a_processor_computes_by_references() -> None:
    assert not dispatch.uses_kernels(torch.ones(1))


def test_a_broken_triton_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulates a missing Triton."""
    monkeypatch.setitem(sys.modules, "katz_graph.kernels.triton.probe", None)
    dispatch._works.cache_clear()
    try:
        with pytest.warns(UserWarning, match="Triton does not work") as warned:
            assert not dispatch._works() and not dispatch._works()
        assert len(warned) == 1
    finally:
        dispatch._works.cache_clear()
