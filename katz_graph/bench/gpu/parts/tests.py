"""Runs the tests that need a GPU, from a checkout."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.core.errors import InputError

FOLDER = Path("tests/gpu")
BOUND = 90.0  # seconds


def run(setting: Setting, rows: Rows) -> BenchResult:
    """Raises InputError outside a checkout."""
    if not FOLDER.is_dir():
        raise InputError(f"part tests: {FOLDER} is not here; run it in a checkout")
    began = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider", str(FOLDER)],
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - began
    lines = ran.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    rows.add("tests/gpu", seconds=seconds, said=(lines or [ran.stderr[-300:]])[-1], failed=failed)
    rows.judge("tests/gpu, exit status", float(ran.returncode), at_most=0.0)
    rows.judge("tests/gpu, seconds", seconds, at_most=BOUND)
    return rows.result()
