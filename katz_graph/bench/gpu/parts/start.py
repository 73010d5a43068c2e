"""Measures two starts of the server, from the command to the first picture: the first without
measurements of the device and without compiled kernels, the second with both. Model files are in
the page cache.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from katz_graph.bench.gpu.originals import Originals, originals
from katz_graph.bench.gpu.peers import OURS, Ours, Start, starts
from katz_graph.bench.gpu.rows import Rows
from katz_graph.bench.gpu.setting import Setting
from katz_graph.bench.result import BenchResult
from katz_graph.testing.comfyui_client import visit

PATIENCE = 150.0  # seconds, timeout of a first picture
BOUNDS = {"first start": 12.0, "second start": 9.0}  # seconds to the picture


def run(setting: Setting, rows: Rows, peer: Path | None = None) -> BenchResult:
    with originals(setting, rows.folder) as files:
        rows.add("files", megabytes=files.path("checkpoint").stat().st_size / 1e6)
        shutil.rmtree(files.cache, ignore_errors=True)
        for server, start in starts(setting, files, peer).items():
            for number, (what, bound) in enumerate(BOUNDS.items()):
                took = _started(setting, files, start, rows, f"{what}, {server}", number)
                if server == OURS:
                    rows.judge(f"{what}: seconds to the first picture", took, at_most=bound)
    return rows.result()


def _started(
    setting: Setting, files: Originals, start: Start, rows: Rows, what: str, seed: int
) -> float:
    """Starts and stops a server; returns the seconds to the first picture. Adds a row per phase."""
    with tempfile.TemporaryDirectory() as name:
        server, began = start(Path(name)), time.perf_counter()
        server.start(wait=False)
        try:
            prompt = files.workflow(setting.sides[0], setting.steps, seed)
            seen = visit("127.0.0.1", server.port, prompt, began, PATIENCE)
            rows.add(
                what,
                answer_seconds=seen.object_info,
                seconds=seen.first_picture,
                megabytes=len(seen.picture) / 1e6,
            )
            phases = server.phases() if isinstance(server, Ours) else {}
            for phase, seconds in phases.items():
                rows.add(f"{what}, {phase}", seconds=seconds)
        finally:
            server.end()
    return seen.first_picture
