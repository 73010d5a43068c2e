"""Bounds the time of a placement from below: work of each device, bytes over each direction of a
link, longest path of an evaluation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from katz_graph.ir.program import Program, Variant
from katz_graph.ir.region import Ref
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.calls import Costs, Wiring, wirings

RARE = 0.05  # of the evaluations: a variant that the bound leaves out


@dataclass(frozen=True, slots=True)
class Reading:
    """Links a costed operation to another one whose value it reads. Through operations without cost
    it counts as nothing to send.
    """

    source: str
    ref: Ref | None
    size: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Lists the costed operations of a variant in topological order, and what they exchange."""

    evaluations: int
    names: tuple[str, ...]
    reads: Mapping[str, tuple[Reading, ...]]
    step_readers: tuple[str, ...]
    feeders: tuple[str, ...]  # what the prediction is made of
    alike: tuple[tuple[str, ...], ...]  # every costed operation stands in one of these


class Bounds:
    """Computes lower bounds in seconds for placements of the operations of a program's loop, as if
    nothing disturbed anything.
    """

    def __init__(self, program: Program, costs: Costs) -> None:
        self._program, self._costs = program, costs
        self._sizes = ValueSizes(program)
        self._step = self._sizes.of(Ref(program.region.begin.id))
        total = sum(len(variant.evaluations) for variant in program.variants)
        wired = zip(program.variants, wirings(program), strict=True)
        self.outlines = tuple(
            self._outline(variant, wires)
            for variant, wires in wired
            if len(variant.evaluations) >= RARE * total
        )

    def seconds(
        self,
        placement: Mapping[str, str],
        owner: str,
        cut: Set[str] = frozenset(),
        least: float = 0.0,
    ) -> float:
        """Returns the loop's bound; readers of the ControlNet operations `cut` do not wait for
        them. `least`: the result of `occupation`, if known.
        """
        total = 0.0
        for outline in self.outlines:
            total += outline.evaluations * max(
                self._path(outline, placement, owner, cut),
                self._occupied(outline, placement, owner) if not least else 0.0,
            )
        return max(total, least)

    def occupation(self, placement: Mapping[str, str], owner: str) -> float:
        """Returns a weaker, cheaper bound: what devices compute and links carry. `placement` may be
        partial.
        """
        return sum(
            outline.evaluations * self._occupied(outline, placement, owner)
            for outline in self.outlines
        )

    def _occupied(self, outline: CriticalPath, placement: Mapping[str, str], owner: str) -> float:
        work, traffic = self._work(outline, placement), self._traffic(outline, placement, owner)
        return max(max(work.values(), default=0.0), max(traffic.values(), default=0.0))

    def _work(self, outline: CriticalPath, placement: Mapping[str, str]) -> dict[str, float]:
        """Returns device -> seconds of computing an evaluation, equal operations batched where that
        is faster.
        """
        found: dict[str, float] = {}
        seconds, batching = self._costs.seconds, self._program.target.batching
        for names in outline.alike:
            members: dict[str, int] = {}
            for name in names:
                if name in placement:
                    members[placement[name]] = members.get(placement[name], 0) + 1
            for device, count in members.items():
                one = count * seconds(names[0], 1, device)
                if count > 1 and batching is not False:
                    one = min(one, seconds(names[0], count, device))
                found[device] = found.get(device, 0.0) + one
        return found

    def _traffic(
        self, outline: CriticalPath, placement: Mapping[str, str], owner: str
    ) -> dict[tuple[str, str], float]:
        """Returns direction of a link -> seconds that an evaluation's bytes take."""
        sent: dict[tuple[Ref, str, str], float] = {}
        for name, readings in outline.reads.items():
            target = placement.get(name)
            if target is None:
                continue
            for reading in readings:
                source = placement.get(reading.source)
                if reading.ref is not None and source is not None and source != target:
                    sent[reading.ref, source, target] = reading.size
        begin = Ref(self._program.region.begin.id)
        for target in {placement[name] for name in outline.step_readers if name in placement} - {
            owner
        }:
            sent[begin, owner, target] = self._step
        found: dict[tuple[str, str], float] = {}
        for (_, source, target), size in sent.items():
            link = self._program.target.links.get((source, target))
            if link is not None:
                found[source, target] = (
                    found.get((source, target), 0.0) + size / link.bytes_per_second
                )
        return found

    def _path(
        self, outline: CriticalPath, placement: Mapping[str, str], owner: str, cut: Set[str]
    ) -> float:
        """Returns the seconds of the longest path from the step to the prediction."""
        finished: dict[str, float] = {}
        links, seconds = self._program.target.links, self._costs.seconds
        stepping = set(outline.step_readers)
        for name in outline.names:
            device = placement.get(name)
            if device is None:
                continue
            start = 0.0
            if device != owner and name in stepping and (owner, device) in links:
                start = links[owner, device].seconds(self._step)
            for reading in outline.reads[name]:
                if reading.source in cut or reading.source not in finished:
                    continue
                at, source = finished[reading.source], placement[reading.source]
                if source != device and reading.ref is not None and (source, device) in links:
                    at += links[source, device].seconds(reading.size)
                start = max(start, at)
            finished[name] = start + seconds(name, 1, device)
        return max((finished[name] for name in outline.feeders if name in finished), default=0.0)

    def _outline(self, variant: Variant, wires: Wiring) -> CriticalPath:
        costed = {operation.id: stage_of(operation).costed for operation in variant.operations}
        feeders = self._through(wires, costed, variant.prediction.operation)
        return CriticalPath(
            evaluations=len(variant.evaluations),
            names=tuple(name for name in wires.names if costed[name]),
            reads={
                op.id: tuple(self._readings(wires, costed, op.references()))
                for op in variant.operations
                if costed[op.id]
            },
            step_readers=tuple(
                op.id
                for op in variant.operations
                if costed[op.id]
                and any(
                    ref.operation == self._program.region.begin.id for _, ref in op.references()
                )
            ),
            feeders=tuple(feeders),
            alike=_alike(wires, costed),
        )

    def _readings(
        self, wires: Wiring, costed: Mapping[str, bool], references: Iterator[tuple[str, Ref]]
    ) -> Iterator[Reading]:
        for _, ref in references:
            if costed.get(ref.operation):
                yield Reading(ref.operation, ref, self._sizes.of(ref))
            elif ref.operation in costed:
                yield from (
                    Reading(name, None, 0.0) for name in self._through(wires, costed, ref.operation)
                )

    def _through(self, wires: Wiring, costed: Mapping[str, bool], name: str) -> dict[str, None]:
        """Returns the costed operations that `name` is or reads over operations without cost."""
        if costed.get(name):
            return {name: None}
        return {
            found: None
            for source in wires.sources.get(name, ())
            for found in self._through(wires, costed, source)
        }


def _alike(wires: Wiring, costed: Mapping[str, bool]) -> tuple[tuple[str, ...], ...]:
    together = {name for names in wires.alike for name in names}
    return (
        *wires.alike,
        *((name,) for name in wires.names if costed[name] and name not in together),
    )
