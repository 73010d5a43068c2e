"""Runs the parts of the GPU bench one after another within a time limit, each in its own process:
a fault of the device ends only one part.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from katz_graph.bench.gpu.rows import Rows, file_of
from katz_graph.bench.result import BenchResult

MAX_OF_EXPECTED = 2.0  # × the expected seconds of a part, after which it is stopped
COLUMNS = ("part", "what", "figure", "bound", "holds")


def run_parts(
    expected: Mapping[str, float],
    seconds: float,
    out: Path | None,
    peer: str | None,
    command: tuple[str, ...] = (sys.executable, "-m", "katz_graph.cli.main", "bench", "gpu"),
) -> BenchResult:
    """Runs the parts in order, and skips those that no longer fit into `seconds`. `expected`: the
    seconds of each part. `command`: runs a part with `--part NAME --out FOLDER`.

    The result holds if each part that ran wrote at least one figure with a bound, and all bounds
    hold. Notes name the parts that were skipped, stopped or failed.
    """
    ends = time.monotonic() + seconds
    judged: list[dict[str, Any]] = []
    notes: list[str] = []
    broken = False
    with ExitStack() as opened:
        folder = out or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        rows = opened.enter_context(Rows("everything", folder))
        for part, takes in expected.items():
            left = ends - time.monotonic()
            if left < takes:
                notes.append(f"{part}: skipped, takes {takes:.0f} s of {left:.0f} s left")
                rows.add(part, skipped=True, takes_seconds=takes, left_seconds=left)
                continue
            file = file_of(folder, part)
            read = file.stat().st_size if file.exists() else 0
            began = time.monotonic()
            given = (*command, "--part", part, "--out", str(folder))
            status = _ran(
                given if peer is None else (*given, "--peer", peer),
                min(left, MAX_OF_EXPECTED * takes),
            )
            found = list(_rows(file, read))
            judged += (row for row in found if "bound" in row)
            ended = {None: "stopped", 0: "", 1: ""}.get(status, f"exit status {status}")
            rows.add(part, seconds=time.monotonic() - began, rows=len(found), ended=ended)
            if ended or not any("bound" in row for row in found):
                broken = True
                notes.append(f"{part}: {ended or 'no figure with a bound'}, {len(found)} rows")
    return BenchResult(
        "gpu",
        not broken and all(row["holds"] for row in judged),
        {f"{row['part']}: {row['what']}": row["figure"] for row in judged},
        {},
        COLUMNS,
        [[row[name] for name in COLUMNS] for row in judged],
        notes=notes,
    )


def _ran(command: tuple[str, ...], seconds: float) -> int | None:
    """Returns the exit status of a command, or None if it was stopped after `seconds`."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):  # also ends servers that the part started
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _rows(file: Path, read: int) -> Iterator[dict[str, Any]]:
    """Yields the rows behind the first `read` bytes; a last line that is not complete is no row."""
    if not file.exists():
        return
    for line in file.read_bytes()[read:].splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield json.loads(line)
