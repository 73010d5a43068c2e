"""Measures every stage of a sampler on every device, alone and while the other devices of its host
do the same work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from katz_graph.core.errors import Cancelled
from katz_graph.executor.graph.context import RunContext
from katz_graph.executor.measure.store import CostStore
from katz_graph.executor.measure.survey import MeasuredDevice
from katz_graph.executor.planning import plan_region
from katz_graph.ir.device import Device, Target
from katz_graph.ir.program import Program
from katz_graph.ir.region import Region
from katz_graph.models.costs.counts import Counts
from katz_graph.node.types import Context

if TYPE_CHECKING:
    from katz_graph.executor.cluster.driver import Cluster

Samples = Mapping[tuple[str, int], Sequence[float]]
"""Seconds of calls, by cost key and number of batch members."""


@dataclass(frozen=True, slots=True)
class StageTime:
    """Holds the seconds of one call of a stage on a device, for a batch of `members` branches.
    None: not measured.

    `roofline`: seconds predicted from the rates of the device.
    """

    stage: str
    device: str
    members: int
    alone: float | None
    busy: float | None
    roofline: float


def profile_region(
    region: Region,
    workers: Cluster,
    places: Sequence[MeasuredDevice],
    store: CostStore,
    context: Context,
) -> list[StageTime]:
    """Runs a sampler on each device alone, then on all devices of a host concurrently. Each time,
    runs equal stages both separately and batched.

    Stores the times, replacing earlier ones, and returns them.
    """
    counts = Counts(store)
    programs = {place.name: _both_ways(region, place.device(store), counts) for place in places}

    def run(place: MeasuredDevice, context: Context) -> Samples:
        timed: dict[tuple[str, int], list[tuple[int, float]]] = {}
        for program in programs[place.name]:
            for call, samples in (
                workers.run(program, context, measure=True).timings[place.name].samples.items()
            ):
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
            key, members = program.keys.get(call.operations[0], ""), len(call.operations)
            if key and call.device == device.name:
                alone, busy = (
                    device.measured.get((key, members, neighbours)) for neighbours in (False, True)
                )
                roofline = device.seconds(program.work[call.operations[0]].batched(members))
                times.setdefault(
                    (key, members),
                    StageTime(call.stage, device.name, members, alone, busy, roofline),
                )
    return list(times.values())


def _warm(timed: Sequence[tuple[int, float]]) -> list[float]:
    """Drops samples with cold processors and caches: those of the first evaluation, or of the first
    call if that is the only evaluation.
    """
    return [seconds for evaluation, seconds in timed if evaluation > 0] or [
        seconds for _, seconds in timed[1:]
    ]


def _both_ways(region: Region, device: Device, counts: Counts) -> list[Program]:
    return [
        plan_region(region, Target((device,), batching=batching), counts)
        for batching in (False, True)
    ]


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
