"""A small part `load` of `katz bench edit`. Its seconds are too short for the bounds."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from katz_graph.bench import edit_load
from katz_graph.bench.conditions import quiet
from katz_graph.bench.edit_load import Edits, FewestRequests, Scale
from katz_graph.ir.program import Program
from katz_graph.planner.passes import reuse
from katz_graph.testing.worker_threads import WorkerThreads


def test_all_ways_serve_the_edits_and_only_full_computation_reads_no_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reuse, "MIN_GAIN", -1.0)  # networks are small
    planned: dict[str, list[Program]] = {}
    note = edit_load.Engine._leased

    def noted(self: edit_load.Engine, *arguments: Any) -> Program:
        program = note(self, *arguments)
        fewest = isinstance(self._router, FewestRequests)
        way = "fewest" if fewest else "end" if self.allowed else "full"
        planned.setdefault(way, []).append(program)
        return program

    monkeypatch.setattr(edit_load.Engine, "_leased", noted)
    scale = Scale(
        (16, 32, 64),
        (1, 1, 1),
        cells=16,
        templates=2,
        steps=(1, 2),
        edits=2,
        arrivals=3,
        busy_arrivals=3,
        rounds=1,
        predicted=2,
        simulated=20,
        launcher=WorkerThreads(),
    )
    with quiet():
        result = edit_load.run(scale)
    assert set(result.metrics) == {"load_throughput", "load_mean", "load_p95_by_end"}
    assert len(result.table) == 6 and all(value > 0 for row in result.table for value in row[1:])
    assert not any(one.template for one in planned["full"])
    for way in ("end", "fewest"):
        assert any(one.template for one in planned[way]), way


def test_edits_have_small_masks_and_prefer_few_templates() -> None:
    cases = Edits(Path("pipeline"), Scale()).drawn(600, 0)
    assert fmean(float(case.mask.mean()) for case in cases if case.mask is not None) == (
        pytest.approx(0.11, abs=0.015)
    )
    uses = [float(case.latent[0, 0, 0, 0]) for case in cases]
    counts = sorted((uses.count(one) for one in set(uses)), reverse=True)
    assert len(counts) == 20 and counts[0] > 10 * counts[-1]
