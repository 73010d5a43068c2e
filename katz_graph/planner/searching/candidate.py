"""Defines a candidate of the search, builds its program, and times the program on the simulator's
clock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from katz_graph.ir.program import Program
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.passes.stale_controlnets import make_stale
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.bound import Bounds, Floats
from katz_graph.planner.searching.calls import (
    Arrangement,
    Costs,
    Neighbours,
    Wiring,
    calls_before,
    loop_calls,
    wirings,
)
from katz_graph.planner.searching.placement_rules import PlacementRules
from katz_graph.planner.simulation.flow import Flow, Repeats, shortened
from katz_graph.planner.simulation.simulate import run_clock


@dataclass(frozen=True, slots=True)
class Candidate:
    """Names the device of every costed operation, the sampler's device, and the stale ControlNet
    operations.
    """

    devices: tuple[str, ...]  # in the order of `CandidateTimer.names`
    sampler_device: str
    stale: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Timed:
    """A candidate with its predicted seconds for the whole request."""

    seconds: float
    candidate: Candidate
    merged: bool  # equal stages of a device share calls


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """Holds a program with some ControlNets stale, its shortened form, and data shared by its
    candidates.
    """

    program: Program
    short: Program
    repeats: tuple[Repeats, ...]
    flow: Flow
    wires: tuple[Wiring, ...]


class CandidateTimer:
    """Builds and times the programs of candidates. Prepares each set of stale ControlNets once."""

    def __init__(self, program: Program, sites: PlacementRules, costs: Costs) -> None:
        self.program, self.sites, self.costs = program, sites, costs
        self.names = sites.costed
        self._graph, self._neighbours = _Graph(program), Neighbours(program)
        places: dict[str, int] = {name: place for place, name in enumerate(self.names)}
        # indices of each ControlNet operation and its readers; None: not placed by candidates
        self._read_by = [
            (places[name], tuple(places.get(reader) for reader in readers))
            for name, readers in self._graph.controlnets.items()
        ]
        self._prepared: dict[frozenset[str], PreparedSearch] = {}
        self._flows: dict[frozenset[str], Flow] = {}

    def placement(self, candidate: Candidate) -> dict[str, str]:
        return dict(zip(self.names, candidate.devices, strict=True))

    def crossing(self, candidate: Candidate) -> frozenset[str]:
        """Returns the ControlNet operations that another device reads."""
        devices = candidate.devices
        return frozenset(
            [
                self.names[place]
                for place, readers in self._read_by
                if any(reader is None or devices[reader] != devices[place] for reader in readers)
            ]
        )

    @cached_property
    def bounds(self) -> Bounds:
        return Bounds(self.program, self.costs, self.names, self.prepared(frozenset()).wires)

    def least_seconds(self, candidates: Sequence[Candidate], limit: float) -> Floats:
        """Returns the lower bounds of candidates, [candidates]; see `Bounds.seconds`."""
        if not candidates:
            return np.zeros(0)
        placed = self.bounds.placements(
            (one.devices for one in candidates),
            (one.sampler_device for one in candidates),
            (one.stale for one in candidates),
        )
        return self.bounds.seconds(placed, limit)

    def timed(self, candidate: Candidate, merged: bool) -> Timed | None:
        """Times a candidate. Returns None if `merged` is set and no stages can be merged."""
        prepared = self.prepared(candidate.stale)
        short = self._arranged(prepared.short, prepared.wires, candidate, merged)
        if merged and not any(len(call.operations) > 1 for calls in short.calls for call in calls):
            return None
        ends = run_clock(prepared.flow, short)
        further = sum(
            repeats.further
            * (ends[repeats.last] - (ends[repeats.first - 1] if repeats.first else 0.0))
            / repeats.times
            for repeats in prepared.repeats
        )
        return Timed((ends[-1] if ends else 0.0) + further, candidate, merged)

    def exact_seconds(self, timed: Timed) -> float:
        """Simulates all evaluations, without extrapolation."""
        stale = timed.candidate.stale
        if stale not in self._flows:
            self._flows[stale] = Flow(self.prepared(stale).program)
        ends = run_clock(self._flows[stale], self.built(timed))
        return ends[-1] if ends else 0.0

    def built(self, timed: Timed) -> Program:
        """Returns the whole program of a candidate, with `placement`, `sampler_device`, `calls` and
        `before_calls` set.
        """
        prepared = self.prepared(timed.candidate.stale)
        return self._arranged(prepared.program, prepared.wires, timed.candidate, timed.merged)

    def prepared(self, stale: frozenset[str]) -> PreparedSearch:
        if stale not in self._prepared:
            program = (
                make_stale(self.program, [name for name in self.names if name in stale])
                if stale
                else self.program
            )
            short, repeats = shortened(program)
            self._prepared[stale] = PreparedSearch(
                program, short, repeats, Flow(short), wirings(program)
            )
        return self._prepared[stale]

    def _arranged(
        self, program: Program, wires: tuple[Wiring, ...], candidate: Candidate, merged: bool
    ) -> Program:
        placement = self._graph.complete(self.placement(candidate), candidate.sampler_device)
        used = {*candidate.devices, candidate.sampler_device}
        busy = self._neighbours.of(used)
        ranks = self._graph.ranks(placement, self.costs, busy) if len(used) > 1 else None
        arranged = Arrangement(placement, merged, busy, ranks)
        calls = tuple(
            loop_calls(
                variant,
                wired,
                arranged,
                self.costs,
                self._neighbours.of_operations(wired, placement),
            )
            for variant, wired in zip(program.variants, wires, strict=True)
        )
        before = calls_before(
            program, calls, arranged, self.sites.texts(candidate.sampler_device), self.costs
        )
        return replace(
            program,
            placement=placement,
            sampler_device=candidate.sampler_device,
            calls=calls,
            before_calls=before,
        )


class _Graph:
    """Merges the operations of all variants in one graph."""

    def __init__(self, program: Program) -> None:
        self._program = program
        sizes = ValueSizes(program)
        operations: dict[str, Operation] = {
            op.id: op for variant in program.variants for op in variant.operations
        }
        # operation -> reader -> bytes
        self._edges: dict[str, dict[str, float]] = {name: {} for name in operations}
        slots: dict[int, list[str]] = {}
        for operation in (op for variant in program.variants for op in variant.operations):
            for slot in operation.slots():
                slots.setdefault(slot, []).append(operation.id)
            for _, ref in operation.references():
                if ref.operation in self._edges:
                    self._edges[ref.operation][operation.id] = sizes.of(ref)
        self._later: dict[str, list[str]] = {}  # operation -> readers in later evaluations
        for variant in program.variants:
            for slot, value in variant.carried.items():
                if isinstance(value, Ref) and not isinstance(value, Previous):
                    self._later.setdefault(value.operation, []).extend(slots.get(slot, ()))
        self._ending = {variant.prediction.operation for variant in program.variants}
        self._order = self._reversed_order()
        self.controlnets = {
            name: tuple(self._edges[name])
            for name, op in operations.items()
            if stage_of(op).stale_output is not None
        }

    def complete(self, placement: Mapping[str, str], sampler_device: str) -> dict[str, str]:
        """Places the operations without cost: on the sampler's device, else on the device of a
        reader.
        """
        found = dict(placement)
        for name in self._order:
            if name not in found:
                homes = [found[reader] for reader in self._edges[name]] or [
                    found[reader] for reader in self._later.get(name, ()) if reader in found
                ]
                found[name] = (
                    sampler_device
                    if name in self._ending or sampler_device in homes or not homes
                    else homes[0]
                )
        return found

    def ranks(
        self, placement: Mapping[str, str], costs: Costs, busy: frozenset[str]
    ) -> dict[str, float]:
        """Returns the seconds from the start of each operation to the end of the evaluation, as if
        no ControlNet were stale.
        """
        found: dict[str, float] = {}
        links = self._program.target.links
        for name in self._order:
            device, longest = placement[name], 0.0
            for reader, size in self._edges[name].items():
                link = (
                    links.get((device, placement[reader])) if placement[reader] != device else None
                )
                longest = max(longest, found[reader] + (link.seconds(size) if link else 0.0))
            found[name] = longest + costs.seconds(name, 1, device, device in busy)
        return found

    def _reversed_order(self) -> list[str]:
        """Orders every operation after its readers."""
        found: dict[str, None] = {}

        def visit(name: str) -> None:
            if name not in found:
                for reader in self._edges[name]:
                    visit(reader)
                found[name] = None

        for name in self._edges:
            visit(name)
        return list(found)
