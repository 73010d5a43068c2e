"""Computes lower bounds in seconds for many placements at the same time, as numpy arrays.

The bound of an evaluation is the larger of its longest path from the step to the prediction, and
the one-machine bound of any device in job-shop scheduling (Carlier 1982). If calls start at `h` or
later and each is followed by at least `t` seconds, this bound is `h` plus their seconds plus `t`.
The bound of a request is the largest of the sum over its evaluations, the total work of any device,
and the total traffic of any link.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Ref
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.calls import Costs, Wiring

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

MAX_OPERATIONS_FOR_PAIRS = 16
"""Maximum number of operations for which the one-machine bound tries every pair of a start time
and a remaining time, and a beam search places single operations.
"""
ROUNDING_S = 1e-12


@dataclass(frozen=True, slots=True)
class Reading:
    """Names a costed operation that another reads. A value read through operations without cost has
    no `ref` and size 0.
    """

    source: str
    ref: Ref | None
    size: float


@dataclass(frozen=True, slots=True)
class EvaluationGraph:
    """Lists a variant's costed operations in topological order, and their readings."""

    evaluations: int
    names: tuple[str, ...]
    reads: Mapping[str, tuple[Reading, ...]]
    step_readers: tuple[str, ...]
    feeders: tuple[str, ...]  # operations that the prediction reads
    alike: tuple[tuple[str, ...], ...]  # groups of operations that may share a call
    # operation -> operations that neither precede nor follow it
    concurrent: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Placements:
    """Holds device numbers of many placements; -1: not placed yet."""

    operations: Integers  # [placements, operations]
    sampler_devices: Integers  # [placements]
    stale: Booleans  # [placements, operations]: true for stale ControlNet operations

    def some(self, rows: Integers) -> Placements:
        return Placements(self.operations[rows], self.sampler_devices[rows], self.stale[rows])


class Bounds:
    """Bounds the loop's seconds. `names`: the costed operations, in the order of placements."""

    def __init__(
        self, program: Program, costs: Costs, names: Sequence[str], wires: Sequence[Wiring]
    ) -> None:
        self.graphs = tuple(
            _evaluation_graph(program, variant, wired)
            for variant, wired in zip(program.variants, wires, strict=True)
        )
        self._devices = tuple(device.name for device in program.target.devices)
        machine = _Machine(program, costs, names)
        self._evaluations = tuple(_EvaluationBound(graph, machine) for graph in self.graphs)
        self._first = min(
            range(len(self.graphs)),
            key=lambda number: min(program.variants[number].evaluations, default=sys.maxsize),
            default=0,
        )
        self._columns = machine.columns
        self._runs = _runs(program)

    def placements(
        self,
        operations: Iterable[Sequence[str]],
        sampler_devices: Iterable[str],
        stale: Iterable[Iterable[str]],
    ) -> Placements:
        """Converts names to numbers, per placement: devices of operations ("": not placed yet),
        sampler's device, and stale operations.
        """
        numbers = {"": -1} | {name: number for number, name in enumerate(self._devices)}
        rows = np.array([[numbers[name] for name in devices] for devices in operations], np.int64)
        cut = np.zeros(rows.shape, dtype=bool)
        for row, names in enumerate(stale):
            for name in names:
                cut[row, self._columns[name]] = True
        return Placements(
            rows,
            np.array([numbers[sampler_device] for sampler_device in sampler_devices], np.int64),
            cut,
        )

    def seconds(self, placements: Placements, limit: float = np.inf) -> Floats:
        """Returns the bound of every placement, [placements]. Ignores operations not placed yet.
        Beyond `limit` seconds the bound may be weaker.
        """
        rows, devices = len(placements.sampler_devices), len(self._devices)
        work, traffic = np.zeros((rows, devices)), np.zeros((rows, devices, devices))
        for bound in self._evaluations:
            bound.add_work(placements, self._runs, work)
            bound.add_traffic(placements, self._runs, traffic)
        found: Floats = np.maximum(
            work.max(axis=1, initial=0.0), traffic.max(axis=(1, 2), initial=0.0)
        )
        open_rows = np.flatnonzero(found < limit)
        rest = placements.some(open_rows)
        each = [bound.paths(rest) for bound in self._evaluations]
        paths = np.zeros(len(open_rows))
        for bound, seconds in zip(self._evaluations, each, strict=True):
            paths += bound.graph.evaluations * seconds
        if rest.stale.any():  # the first evaluation waits for all ControlNets
            whole = Placements(rest.operations, rest.sampler_devices, np.zeros_like(rest.stale))
            first = self._evaluations[self._first].longest_path(whole)
            paths += np.maximum(0.0, first - each[self._first])
        found[open_rows] = np.maximum(found[open_rows], paths)
        return found


class _Machine:
    """Holds tables of the seconds of operations and transfers. The last index means not placed, and
    takes no time.
    """

    def __init__(self, program: Program, costs: Costs, names: Sequence[str]) -> None:
        devices = [device.name for device in program.target.devices]
        count = len(devices) + 1
        self.devices, self.names, self._costs = devices, names, costs
        self.columns = {name: column for column, name in enumerate(names)}
        self.batching = program.target.batching is not False
        self.step_bytes = ValueSizes(program).of(Ref(program.region.begin.id))
        hosts = {device.host: number for number, device in enumerate(program.target.devices)}
        self.hosts = np.array([hosts[device.host] for device in program.target.devices] + [-1])
        self.latency, self.per_byte = np.zeros((count, count)), np.zeros((count, count))
        for (source, target), link in program.target.links.items():
            if source != target and {source, target} <= set(devices):
                place = devices.index(source), devices.index(target)
                self.latency[place] = link.latency
                self.per_byte[place] = 1 / link.bytes_per_second

    def seconds(self, name: str, members: int) -> Floats:
        """Returns the seconds of one call, [device, whether another device of the host works]."""
        known = [
            [self._costs.seconds(name, members, device, busy) for busy in (False, True)]
            for device in self.devices
        ]
        return np.array([*known, [0.0, 0.0]])

    def transfer(self, source: Integers, target: Integers, size: float) -> Floats:
        """Returns the seconds of a value's transfer between two devices, [placements]."""
        return np.where(
            source == target,
            0.0,
            self.latency[source, target] + size * self.per_byte[source, target],
        )


class _EvaluationBound:
    """Bounds one evaluation of a variant."""

    def __init__(self, graph: EvaluationGraph, machine: _Machine) -> None:
        self.graph, self._machine = graph, machine
        self._single = {name: machine.seconds(name, 1) for name in graph.names}
        self._shared = [
            np.array(
                [
                    machine.seconds(names[0], members) / members
                    for members in range(1, len(names) + 1)
                ]
            )
            for names in graph.alike
        ]

    def paths(self, placements: Placements) -> Floats:
        """Returns the longest path, or the largest one-machine bound if that is longer,
        [placements].
        """
        timed = self._timed(placements)
        if not timed.remainders:
            return np.zeros(len(placements.sampler_devices))
        leading = list(timed.remainders)
        shares = self._shares(timed)
        return np.maximum(
            _longest(timed),
            _one_machine(
                np.stack([timed.devices[name] for name in leading]),
                np.stack([shares[name] for name in leading]),
                np.stack([timed.starts[name] for name in leading]),
                np.stack([timed.remainders[name] for name in leading]),
            ),
        )

    def longest_path(self, placements: Placements) -> Floats:
        """Returns the seconds from the step to the prediction, [placements]."""
        return _longest(self._timed(placements))

    def add_work(self, placements: Placements, runs: Mapping[str, int], work: Floats) -> None:
        """Adds the seconds of every device's calls in all evaluations to `work`, [placements,
        devices].

        A stale operation is omitted in the last evaluation of each of its `runs`.
        """
        timed = self._placed(placements)
        for name, share in self._shares(timed).items():
            seconds = share * self._times(placements, name, runs)
            for device in range(work.shape[1]):
                work[:, device] += np.where(timed.devices[name] == device, seconds, 0.0)

    def add_traffic(self, placements: Placements, runs: Mapping[str, int], traffic: Floats) -> None:
        """Adds the transfer seconds of every link in all evaluations to `traffic`, [placements,
        source, target].
        """
        machine, columns = self._machine, self._machine.columns
        readers: dict[tuple[str, Ref | None, float], list[str]] = {}
        for name in self.graph.step_readers:
            readers.setdefault(("", None, machine.step_bytes), []).append(name)
        for name, readings in self.graph.reads.items():
            for reading in readings:
                if reading.ref is not None:
                    key = reading.source, reading.ref, reading.size
                    readers.setdefault(key, []).append(name)
        rows = np.arange(len(placements.sampler_devices))
        for (source, _, size), names in readers.items():
            device = (
                placements.operations[:, columns[source]] if source else placements.sampler_devices
            )
            times = self._times(placements, source, runs)
            sent: list[Integers] = []
            for name in names:
                target = placements.operations[:, columns[name]]
                fresh = np.logical_and.reduce([target != other for other in sent], initial=True)
                placed = (device >= 0) & (target >= 0) & fresh
                seconds = np.where(placed, times * size * machine.per_byte[device, target], 0.0)
                traffic[rows, device, target] += seconds
                sent.append(target)

    def _times(self, placements: Placements, name: str, runs: Mapping[str, int]) -> Floats:
        """Returns the minimum number of times that an operation is computed, [placements]."""
        count = float(self.graph.evaluations)
        if name not in runs:
            return np.full(len(placements.sampler_devices), count)
        stale = placements.stale[:, self._machine.columns[name]]
        return np.where(stale, max(0.0, count - runs[name]), count)

    def _placed(self, placements: Placements) -> _Timed:
        columns = self._machine.columns
        devices = {name: placements.operations[:, columns[name]] for name in self.graph.names}
        busy = self._busy(devices, placements)
        seconds = {name: self._single[name][devices[name], busy[name]] for name in devices}
        return _Timed(devices, busy, seconds, {}, {})

    def _timed(self, placements: Placements) -> _Timed:
        timed = self._placed(placements)
        self._set_starts(timed, placements)
        self._set_remainders(timed, placements)
        return timed

    def _busy(self, devices: Mapping[str, Integers], placements: Placements) -> dict[str, Integers]:
        """Returns 1 where a concurrent operation is on another device of the same host. Ignores
        stale operations, because the last evaluation omits them.
        """
        hosts, columns = self._machine.hosts, self._machine.columns
        found = {}
        for name, device in devices.items():
            shared = np.zeros(len(device), dtype=bool)
            for other in self.graph.concurrent[name]:
                apart = (devices[other] != device) & (hosts[devices[other]] == hosts[device])
                shared |= apart & ~placements.stale[:, columns[other]]
            found[name] = shared.astype(np.int64)
        return found

    def _shares(self, timed: _Timed) -> dict[str, Floats]:
        """Returns the seconds that each operation adds to its device: those of a separate call, or,
        if less, its share of one call for all equal operations on the device.
        """
        found = dict(timed.seconds)
        if not self._machine.batching:
            return found
        for names, shared in zip(self.graph.alike, self._shared, strict=True):
            for name in names:
                device = timed.devices[name]
                together = [timed.devices[other] == device for other in names]
                members = np.sum(together, axis=0)
                busy = [
                    np.where(one, timed.busy[other], 0)
                    for one, other in zip(together, names, strict=True)
                ]
                share = shared[members - 1, device, np.max(busy, axis=0)]
                found[name] = np.minimum(timed.seconds[name], share)
        return found

    def _set_starts(self, timed: _Timed, placements: Placements) -> None:
        stepping, transfer = set(self.graph.step_readers), self._machine.transfer
        for name in self.graph.names:
            start = np.zeros(len(placements.sampler_devices))
            if name in stepping:
                start = transfer(
                    placements.sampler_devices, timed.devices[name], self._machine.step_bytes
                )
            for reading in self.graph.reads[name]:
                at = timed.starts[reading.source] + timed.seconds[reading.source]
                start = np.maximum(start, self._after(reading, name, at, timed, placements, 0.0))
            timed.starts[name] = start

    def _set_remainders(self, timed: _Timed, placements: Placements) -> None:
        nothing = np.zeros(len(placements.sampler_devices))
        timed.remainders.update(dict.fromkeys(self.graph.feeders, nothing))
        for name in reversed(self.graph.names):
            if name not in timed.remainders:
                continue
            for reading in self.graph.reads[name]:
                left = timed.remainders[name] + timed.seconds[name]
                left = self._after(reading, name, left, timed, placements, -np.inf)
                known = timed.remainders.get(reading.source)
                timed.remainders[reading.source] = (
                    left if known is None else np.maximum(known, left)
                )

    def _after(
        self,
        reading: Reading,
        name: str,
        seconds: Floats,
        timed: _Timed,
        placements: Placements,
        otherwise: float,
    ) -> Floats:
        """Adds a transfer to `seconds`; returns `otherwise` if the source is stale, because nothing
        waits for it.
        """
        if reading.ref is not None:
            seconds = seconds + self._machine.transfer(
                timed.devices[reading.source], timed.devices[name], reading.size
            )
        stale = placements.stale[:, self._machine.columns[reading.source]]
        return np.where(stale, otherwise, seconds)


@dataclass(frozen=True, slots=True)
class _Timed:
    """Holds the times of an evaluation in many placements, by operation, each [placements]."""

    devices: dict[str, Integers]
    busy: dict[str, Integers]  # 1 where a device of the same host works at the same time
    seconds: dict[str, Floats]  # of a call
    starts: dict[str, Floats]  # earliest
    remainders: dict[str, Floats]  # from end to prediction; -inf if not waited for


def _longest(timed: _Timed) -> Floats:
    paths = [
        timed.starts[name] + timed.seconds[name] + left for name, left in timed.remainders.items()
    ]
    return np.asarray(np.max(paths, axis=0, initial=0.0)) if paths else np.zeros(1)


def _one_machine(devices: Integers, shares: Floats, starts: Floats, remainders: Floats) -> Floats:
    """Returns the largest one-machine bound of any device. All arrays: [operations, placements]."""
    best = np.zeros(devices.shape[1])
    pairs = len(devices) <= MAX_OPERATIONS_FOR_PAIRS
    for first, start in enumerate(starts):
        later = (devices == devices[first]) & (starts >= start - ROUNDING_S) & (remainders >= 0)
        if not pairs:
            load = np.where(later, shares, 0.0).sum(axis=0)
            left = np.where(later, remainders, np.inf).min(axis=0)
            best = np.maximum(best, np.where(later[first], start + load + left, 0.0))
            continue
        for last, left in enumerate(remainders):
            both = later & (remainders >= left - ROUNDING_S)
            load = np.where(both, shares, 0.0).sum(axis=0)
            best = np.maximum(best, np.where(both[last], start + load + left, 0.0))
    return best


def _runs(program: Program) -> dict[str, int]:
    """Returns ControlNet operation -> number of uninterrupted runs of evaluations in which it
    acts.
    """
    acting: dict[str, set[int]] = {}
    for variant in program.variants:
        for operation in variant.operations:
            if stage_of(operation).stale_output is not None:
                acting.setdefault(operation.id, set()).update(variant.evaluations)
    return {
        name: sum(index - 1 not in evaluations for index in evaluations)
        for name, evaluations in acting.items()
    }


def _evaluation_graph(program: Program, variant: Variant, wires: Wiring) -> EvaluationGraph:
    costed = {operation.id: stage_of(operation).costed for operation in variant.operations}
    sizes, begin = ValueSizes(program), program.region.begin.id
    operations = [operation for operation in variant.operations if costed[operation.id]]

    def through(name: str) -> dict[str, None]:
        """Returns `name` if costed, else the nearest costed operations upstream."""
        if costed.get(name):
            return {name: None}
        return {found: None for source in wires.sources.get(name, ()) for found in through(source)}

    def readings(references: Iterator[tuple[str, Ref]]) -> Iterator[Reading]:
        for _, ref in references:
            if costed.get(ref.operation):
                yield Reading(ref.operation, ref, sizes.of(ref))
            elif ref.operation in costed:
                yield from (Reading(name, None, 0.0) for name in through(ref.operation))

    return EvaluationGraph(
        evaluations=len(variant.evaluations),
        names=tuple(name for name in wires.names if costed[name]),
        reads={op.id: tuple(readings(op.references())) for op in operations},
        step_readers=tuple(
            op.id for op in operations if any(ref.operation == begin for _, ref in op.references())
        ),
        feeders=tuple(through(variant.prediction.operation)),
        alike=wires.alike,
        concurrent={name: wires.concurrent[name] for name in wires.names if costed[name]},
    )
