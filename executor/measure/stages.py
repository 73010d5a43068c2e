"""Measures every stage of a sampler on every device, alone and while the other devices of its host
do the same work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from katz_graph.core.errors import Cancelled, OutOfMemory
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.measure.survey import MeasuredDevice
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Device, Target
from katz_graph.ir.program import Call, Program
from katz_graph.ir.region import SLOTS, Region
from katz_graph.models.costs.counts import Counts
from katz_graph.node.types import Context
from katz_graph.picture.batch import repeated

if TYPE_CHECKING:
    from katz_graph.executor.cluster.driver import Cluster

Samples = Mapping[tuple[str, int], Sequence[float]]
"""Seconds of calls, by cost key and number of rows."""

ROWS = (1, 2, 8)  # numbers of rows that `katz profile` measures in addition to the request's own
MAX_BRIEF_STEPS = 4  # steps of a request that is profiled with another number of rows


@dataclass(frozen=True, slots=True)
class StageTime:
    """Holds the seconds of one call of a stage on a device, with `rows` rows. None: not measured.

    `roofline`: seconds predicted from the rates of the device.
    """

    stage: str
    device: str
    rows: int
    alone: float | None
    busy: float | None
    roofline: float


def profile_region(
    region: Region,
    workers: Cluster,
    places: Sequence[MeasuredDevice],
    store: CostStore,
    context: Context,
    rows: Sequence[int] = (),
) -> list[StageTime]:
    """Runs a sampler on each device alone, then on all devices of a host concurrently. Each time,
    runs equal stages both separately and batched, and shortly with other numbers of `rows`.

    Stores the times, replacing earlier ones, and returns them.
    """
    counts = Counts(store)
    programs = {
        place.name: _programs(region, place.device(store), counts, rows) for place in places
    }

    def run(place: MeasuredDevice, context: Context) -> Samples:
        timed: dict[tuple[str, int], list[tuple[int, float]]] = {}
        own = programs[place.name][0].shape
        for program in programs[place.name]:
            try:
                outcome = workers.run(program, context, measure=True)
            except OutOfMemory as error:
                if program.shape == own:
                    raise
                context.warn(f"batches of {program.shape[0]} are not measured: {error}")
                continue
            for call, samples in outcome.timings[place.name].samples.items():
                timed.setdefault(call, []).extend(samples)
        return {call: _warm(samples) for call, samples in timed.items()}

    _keep(store, places, [run(place, context) for place in places], together=1)
    for host in dict.fromkeys(place.host for place in places):
        members = [place for place in places if place.host == host]
        if len(members) > 1:
            _keep(store, members, _at_once(members, run, context), together=len(members))
    return [
        time for place in places for time in stage_times(place.device(store), programs[place.name])
    ]


def stage_times(device: Device, programs: Sequence[Program]) -> list[StageTime]:
    """Returns a device's known times of these programs' calls, once per kind of call."""
    times: dict[tuple[str, int], StageTime] = {}
    for program in programs:
        for call in (*program.before_calls, *(call for calls in program.calls for call in calls)):
            key, rows = _kind(program, call)
            if key and call.device == device.name:
                alone, busy = (
                    device.measured.get((key, rows, neighbours)) for neighbours in (False, True)
                )
                work = program.work[call.operations[0]].batched(len(call.operations))
                times.setdefault(
                    (key, rows),
                    StageTime(call.stage, device.name, rows, alone, busy, device.seconds(work)),
                )
    return sorted(times.values(), key=lambda time: time.rows)


def _warm(timed: Sequence[tuple[int, float]]) -> list[float]:
    """Drops samples with cold processors and caches: those of the first evaluation, or of the first
    call if that is the only evaluation.
    """
    return [seconds for evaluation, seconds in timed if evaluation > 0] or [
        seconds for _, seconds in timed[1:]
    ]


def _programs(region: Region, device: Device, counts: Counts, rows: Sequence[int]) -> list[Program]:
    """Plans a request as it is, both ways, and with the `rows` that these plans lack."""

    def plan(region: Region, batching: bool = False) -> Program:
        return plan_region(region, Target((device,), batching=batching), counts)

    programs = [plan(region), plan(region, batching=True)]
    if any(region.begin.inputs.get(f"initial_{slot}") is not None for slot in range(1, SLOTS + 1)):
        return programs  # values that the loop carries have the request's rows
    looped = {key for program in programs for key, _ in _rows(program)}
    for number in rows:
        known = set().union(*map(_rows, programs))
        if any((key, number) not in known for key in looped):
            programs.append(plan(_with_rows(region, number)))
    return programs


def _rows(program: Program) -> set[tuple[str, int]]:
    """Returns the cost keys of the loop's calls with their numbers of rows."""
    kinds = (_kind(program, call) for calls in program.calls for call in calls)
    return {(key, rows) for key, rows in kinds if key}


def _kind(program: Program, call: Call) -> tuple[str, int]:
    """Returns a call's cost key, which is empty if the call has no work, and its number of rows."""
    first = call.operations[0]
    return program.keys[first], program.rows[first] * len(call.operations)


def _with_rows(region: Region, rows: int) -> Region:
    """Returns a request for `rows` pictures like the first, with at most `MAX_BRIEF_STEPS` steps if
    they can be cut.
    """
    inputs = region.begin.inputs
    latent = {
        name: value for name, value in inputs["latent_image"].items() if name != "batch_index"
    }
    latent["samples"] = repeated(latent["samples"][:1], rows)
    changed: dict[str, Any] = {"latent_image": latent}
    if "sigmas" in inputs:
        changed["sigmas"] = inputs["sigmas"][: MAX_BRIEF_STEPS + 1]
    elif not inputs.get("start_at_step"):
        changed["steps"] = min(inputs["steps"], MAX_BRIEF_STEPS)
    return replace(region, begin=replace(region.begin, inputs={**inputs, **changed}))


def _at_once(
    members: Sequence[MeasuredDevice],
    run: Callable[[MeasuredDevice, Context], Samples],
    context: Context,
) -> list[Samples]:
    """Runs on all devices concurrently. A device that ends early repeats its run, so that the other
    devices stay disturbed until they end.
    """
    repeated = RunContext(
        context.engine, context.folders, context.output_directory, types=context.types
    )
    going = {place.name for place in members}
    lock = threading.Lock()

    def work(place: MeasuredDevice) -> Samples:
        try:
            samples = run(place, context)
        finally:
            with lock:
                going.discard(place.name)
                if not going:
                    repeated.cancel()
        try:
            while going:
                run(place, repeated)
        except Cancelled:
            pass
        return samples

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(work, members))


def _keep(
    store: CostStore, places: Sequence[MeasuredDevice], samples: Sequence[Samples], together: int
) -> None:
    """Stores samples, replacing earlier ones. Devices with equal keys are combined."""
    by_key = sorted(zip(places, samples, strict=True), key=lambda pair: pair[0].key)
    for key, group in groupby(by_key, key=lambda pair: pair[0].key):
        for number, (_, measured) in enumerate(group):
            store.record(key, measured, together, replace=number == 0)
