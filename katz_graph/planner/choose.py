"""The choice among timed candidates: the fastest, the simpler of equal ones, and an approximation only where it is worth something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from katz_graph.planner.candidate import Timed, Workbench
from katz_graph.planner.decompose import decompose
from katz_graph.planner.describe import Describer
from katz_graph.planner.explain import Compared, notes
from katz_graph.planner.program import Program
from katz_graph.planner.simulate import simulate

EQUAL = 1.01  # times within this factor count as equal: predictions are not better than that
WORTH = 0.98  # of the best exact time: a plan that approximates must be below
LISTED = 6


def chosen(bench: Workbench, found: Sequence[Timed], batching: bool | None) -> Program:
    """The program of the best candidate, with `alternatives` and `notes`. `batching`: whether equal stages must share a call."""
    describer = Describer(bench.program)

    def name(one: Timed) -> str:
        return describer.name(bench.placement(one.candidate), one.candidate.owner, one.candidate.delayed, one.merged)

    def simple(one: Timed) -> tuple[int, int, int, int, float, bool]:
        used = len({*one.candidate.devices, one.candidate.owner})
        placement = bench.placement(one.candidate)
        modules, crossings = bench.sites.copies(placement), describer.crossings(placement)
        return len(one.candidate.delayed), crossings, modules, used, round(one.seconds, 9), one.merged

    def best(some: Sequence[Timed]) -> Timed:
        limit = min(one.seconds for one in some) * EQUAL
        return min((one for one in some if one.seconds <= limit), key=simple)

    named: dict[str, list[Timed]] = {}
    for one in sorted(found, key=lambda one: one.seconds):
        named.setdefault(name(one), []).append(one)
    every = [best(group) for group in named.values()]
    kinds = [
        [one for one in every if not one.candidate.delayed],
        [one for one in every if one.candidate.delayed],
        [one for one in every if len(set(one.candidate.devices)) == 1],
        [one for one in every if len(set(one.candidate.devices)) > 1],
    ]
    listed = dict.fromkeys([*every[:LISTED], *(best(kind) for kind in kinds if kind)])
    timed = [replace(one, seconds=bench.exact_seconds(one)) for one in listed]
    wanted = [one for one in timed if batching is None or one.merged == batching] or timed
    exact = [one for one in wanted if not one.candidate.delayed]
    stale = [one for one in wanted if one.candidate.delayed]
    winner = best(exact or stale)
    if exact and stale and min(one.seconds for one in stale) < WORTH * winner.seconds:
        winner = best(stale)
    program = replace(bench.built(winner), delayed=tuple(sorted(winner.candidate.delayed)))
    program = decompose(program) if program.delayed else program
    others = sorted((one for one in timed if one != winner), key=lambda one: one.seconds)
    compared = [Compared(name(one), bench.built(one), bool(one.candidate.delayed), one.seconds) for one in others]
    alternatives = {name(one): one.seconds for one in sorted(timed, key=lambda one: one.seconds)}
    return replace(program, alternatives=alternatives, notes=notes(program, simulate(program), compared))
