"""A request that is due soon starts within one evaluation that others share, and a cancelled one
stops within one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from processes import eventually

from katz_graph.core.errors import Cancelled
from katz_graph.core.shared_rows import SharedRows
from katz_graph.executor.calls.computing import Eagerly, StageCall
from katz_graph.executor.turns.loop import DeviceThread
from katz_graph.models.stages import Outputs
from katz_graph.testing.model_files import Models
from katz_graph.testing.plain_loop import Case
from katz_graph.testing.requests import bare_context, local_engine, sample, sampler_region

RUNNING = 8  # requests
PATIENCE = 60.0  # seconds


class Logging(Eagerly):
    """Logs the noise levels of evaluations, and other events."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        self.log += [
            set(call.given["step"].sigma.tolist())
            for call in calls
            if call.stage.name == "unet_encoder"
        ]
        return super().together(calls)

    def shared(self, levels: int) -> bool:
        """Returns whether the last evaluation had rows of this many noise levels."""
        return bool(self.log) and len(self.log[-1]) == levels

    def after(self, event: str) -> list[set[float]]:
        return [one for one in self.log[self.log.index(event) :] if isinstance(one, set)]


def test_a_due_request_starts_and_a_cancelled_one_stops_within_one_shared_evaluation(
    sd1: Models, costs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Case("preempted", sd1.pipeline, "euler", 60)
    # other numbers of steps, so that each has other noise levels after its first evaluation
    regions = [sampler_region(replace(first, steps=60 + number)) for number in range(RUNNING)]
    urgent = sampler_region(replace(first, steps=3))
    rows = SharedRows(2 * RUNNING)  # which the running ones fill
    with (
        local_engine(cache=costs, shared_rows=rows) as engine,
        ThreadPoolExecutor(RUNNING + 1) as pool,
    ):
        sample(engine, urgent)  # loads the model
        levels = {point.sigma for point in engine.plan(urgent).schedule}
        cancelled_levels = {point.sigma for point in engine.plan(regions[0]).schedule} - levels
        engine.models.compute = device = Logging()
        submit = DeviceThread.submit

        def submitted(thread: DeviceThread, task: Any, place: Any) -> Any:
            if place.due < math.inf:
                device.log.append("due")
            return submit(thread, task, place)

        monkeypatch.setattr(DeviceThread, "submit", submitted)
        contexts = [bare_context(engine) for _ in regions]
        running = [
            pool.submit(sample, engine, region, context)
            for region, context in zip(regions, contexts, strict=True)
        ]
        eventually(lambda: device.shared(RUNNING), PATIENCE)
        context = bare_context(engine)
        context.due = time.monotonic() + PATIENCE
        pool.submit(sample, engine, urgent, context).result()
        before = device.after("due")
        waited = next(number for number, one in enumerate(before) if one & levels)
        device.log.append("cancelled")
        contexts[0].cancel()
        assert isinstance(running[0].exception(), Cancelled)
        eventually(lambda: device.shared(RUNNING - 1), PATIENCE)
        late = [one & cancelled_levels for one in device.after("cancelled")]
        for one in running[1:]:
            one.result()
    assert waited <= 1
    assert sum(map(bool, late)) <= 1
