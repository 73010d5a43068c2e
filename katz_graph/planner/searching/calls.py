"""Makes calls from a placement: lets equal stages of a device share a call, orders each device's
calls, and adds the calls before the loop.

Must not know how a placement was found.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from katz_graph.ir.program import Call, Program, Variant
from katz_graph.ir.region import Operation
from katz_graph.models.stage_registry import stage, text_arguments
from katz_graph.planner.region import stage_of
from katz_graph.planner.sharing import merge_key
from katz_graph.planner.simulation.views import Views


@dataclass(frozen=True, slots=True)
class Wiring:
    """Describes a variant by operation names."""

    names: tuple[str, ...]  # in topological order
    sources: Mapping[str, tuple[str, ...]]  # operation -> operations it reads in this evaluation
    # operation -> costed operations that neither precede nor follow it
    concurrent: Mapping[str, frozenset[str]]
    alike: tuple[tuple[str, ...], ...]  # groups of operations that may share a call


def wirings(program: Program) -> tuple[Wiring, ...]:
    """Builds each variant's `Wiring`."""
    views = Views(program)
    return tuple(_wiring(program, variant, views) for variant in program.variants)


def _wiring(program: Program, variant: Variant, views: Views) -> Wiring:
    inside = {operation.id for operation in variant.operations}
    sources = {
        op.id: tuple(
            dict.fromkeys(ref.operation for _, ref in op.references() if ref.operation in inside)
        )
        for op in variant.operations
    }
    alike: dict[Hashable, list[str]] = {}
    for operation in variant.operations:
        if stage_of(operation).costed:
            alike.setdefault(merge_key(program, variant, operation, views), []).append(operation.id)
    costed = frozenset(
        operation.id for operation in variant.operations if stage_of(operation).costed
    )
    concurrent = _concurrent(sources, costed)
    return Wiring(
        tuple(sources),
        sources,
        concurrent,
        tuple(tuple(names) for names in alike.values() if len(names) > 1),
    )


def _concurrent(
    sources: Mapping[str, tuple[str, ...]], costed: frozenset[str]
) -> dict[str, frozenset[str]]:
    before: dict[str, frozenset[str]] = {}
    for name, read in sources.items():
        before[name] = frozenset(read).union(*(before[source] for source in read))
    behind = {
        name: frozenset(other for other in sources if name in before[other]) for name in sources
    }
    return {name: costed - before[name] - behind[name] - {name} for name in sources}


class Costs:
    """Computes and caches the seconds of calls on the program's devices."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._devices = {device.name: device for device in program.target.devices}
        self._known: dict[tuple[str, int, str, bool], float] = {}

    def seconds(self, name: str, members: int, device: str, busy: bool = False) -> float:
        """Returns the seconds of `members` operations like `name` in one call. `busy`: another
        device of the host works at the same time.
        """
        program = self._program
        rows = members * program.rows[name]
        known = (program.keys.get(name) or name, rows, device, busy)
        if known not in self._known:
            self._known[known] = self._devices[device].cost(
                program.keys.get(name, ""), rows, program.work[name].batched(members), busy
            )
        return self._known[known]


class Neighbours:
    """Finds devices that other devices of the same host may slow down."""

    def __init__(self, program: Program) -> None:
        self._hosts = {device.name: device.host for device in program.target.devices}
        self._apart = len(set(self._hosts.values())) == len(self._hosts)

    def of(self, used: Iterable[str]) -> frozenset[str]:
        names = set(used)
        if self._apart or len(names) < 2:
            return frozenset()
        hosts = [self._hosts[name] for name in names]
        return frozenset(name for name in names if hosts.count(self._hosts[name]) > 1)

    def of_operations(self, wires: Wiring, placement: Mapping[str, str]) -> frozenset[str]:
        """Returns the operations during which another device of the host may work."""
        if self._apart:
            return frozenset()
        hosts = self._hosts
        return frozenset(
            name
            for name, others in wires.concurrent.items()
            if any(
                placement[other] != placement[name]
                and hosts[placement[other]] == hosts[placement[name]]
                for other in others
            )
        )


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Places operations and orders calls. `ranks` order the calls of a device, larger first; None:
    topological order.
    """

    placement: Mapping[str, str]
    merge: bool
    busy: frozenset[str]
    ranks: Mapping[str, float] | None = None


def loop_calls(
    variant: Variant, wires: Wiring, arranged: Arrangement, costs: Costs, crowded: frozenset[str]
) -> tuple[Call, ...]:
    """Returns the calls of one evaluation in topological order. `crowded`: operations during which
    other devices of the host work.
    """
    groups = _merged(wires, arranged.placement) if arranged.merge else {}
    member_of = {name: groups.get(name, (name,)) for name in wires.names}
    stages = {operation.id: operation.stage for operation in variant.operations}
    calls = []
    for group in _ordered(wires, member_of, arranged.ranks):
        device = arranged.placement[group[0]]
        calls.append(
            Call(
                group,
                stages[group[0]],
                device,
                costs.seconds(group[0], len(group), device, not crowded.isdisjoint(group)),
            )
        )
    return tuple(calls)


def _merged(wires: Wiring, placement: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Returns operation -> the group of equal operations on its device. Skips groups that would
    create a cycle.
    """
    found: dict[str, tuple[str, ...]] = {}
    for names in wires.alike:
        by_device: dict[str, list[str]] = {}
        for name in names:
            by_device.setdefault(placement[name], []).append(name)
        for group in (tuple(group) for group in by_device.values() if len(group) > 1):
            trial = found | dict.fromkeys(group, group)
            member_of = {name: trial.get(name, (name,)) for name in wires.names}
            if len(_ordered(wires, member_of, None)) == len(set(member_of.values())):
                found = trial
    return found


def _ordered(
    wires: Wiring, member_of: Mapping[str, tuple[str, ...]], ranks: Mapping[str, float] | None
) -> list[tuple[str, ...]]:
    """Orders groups topologically, higher ranks first. If the graph has a cycle, groups are
    missing.
    """
    keys: dict[tuple[str, ...], tuple[float, int]] = {}
    for position, name in enumerate(wires.names):
        group = member_of[name]
        rank = -ranks.get(name, 0.0) if ranks else 0.0
        known = keys.get(group)
        keys[group] = (rank, position) if known is None else (min(known[0], rank), known[1])
    waits: dict[tuple[str, ...], int] = dict.fromkeys(keys, 0)
    readers: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for name in wires.names:
        for source in wires.sources[name]:
            readers.setdefault(member_of[source], []).append(member_of[name])
            waits[member_of[name]] += 1
    ready = [(keys[group], group) for group, count in waits.items() if not count]
    heapify(ready)
    ordered = []
    while ready:
        _, group = heappop(ready)
        ordered.append(group)
        for reader in readers.get(group, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (keys[reader], reader))
    return ordered


def calls_before(
    program: Program,
    calls: Sequence[Sequence[Call]],
    arranged: Arrangement,
    texts: Mapping[str, str],
    costs: Costs,
) -> tuple[Call, ...]:
    """Returns the calls of hoisted work: texts on the devices `texts`, other work on each device
    that reads it. Batches work that one batched call reads.
    """
    readers: dict[str, dict[str, None]] = {operation.id: {} for operation in program.before}
    for variant in program.variants:
        for operation in variant.operations:
            for _, ref in operation.references():
                if ref.operation in readers:
                    readers[ref.operation][arranged.placement[operation.id]] = None
    chained = {op.id for op in program.before if stage_of(op).chained}
    for operation in reversed(program.before):  # hoisted work that reads other hoisted work
        for _, ref in operation.references():
            if not chained.issuperset((ref.operation, operation.id)):
                readers[ref.operation] |= readers[operation.id]
    # a switch may choose other inputs for an operation in another variant
    chosen = [{op.id: op for op in variant.operations} for variant in program.variants]
    found = []
    for device in (device.name for device in program.target.devices):
        batches = _batches(
            [
                [operations[member] for member in call.operations]
                for operations, of_variant in zip(chosen, calls, strict=True)
                for call in of_variant
                if call.device == device and len(call.operations) > 1
            ]
        )
        wanted = [
            op
            for op in program.before
            if device in ((texts[op.id],) if stage_of(op).encodes_text else readers[op.id])
        ]
        stages = {op.id: op.stage for op in wanted}
        for group in dict.fromkeys(batches.get(op.id, (op.id,)) for op in wanted):
            seconds = costs.seconds(group[0], len(group), device, device in arranged.busy)
            found.append(Call(group, stages[group[0]], device, seconds))
    return tuple(sorted(found, key=_order))


def _order(call: Call) -> tuple[bool, bool]:
    """Orders texts first, and last the chains, whose batches read several texts."""
    declared = stage(call.stage)
    return declared.reads_text, declared.chained


def _batches(merged: Iterable[Sequence[Operation]]) -> dict[str, tuple[str, ...]]:
    """Returns operation before the loop -> the operations batched with it, because one call of the
    loop reads them all.
    """
    batches: dict[str, tuple[str, ...]] = {}
    for members in merged:
        for name, made_by in text_arguments(stage_of(members[0])).items():
            if stage(made_by).for_all_rows:
                continue
            if name not in members[0].inputs:
                continue
            group = tuple(member.inputs[name].operation for member in members)
            if len(set(group)) == len(group) and not any(member in batches for member in group):
                batches |= dict.fromkeys(group, group)
    return batches
