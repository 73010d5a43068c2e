"""Pass *search*: finds the fastest plan on the simulator: placement, stages that share a call, and
stale ControlNets.

Generates candidates from the series-parallel tree, times them in the order of a lower bound, then
moves stages of the best ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from katz_graph.ir.program import Program
from katz_graph.planner.passes.decompose import decompose
from katz_graph.planner.report.explain import TIE_TOLERANCE, Compared, Describer, notes
from katz_graph.planner.searching.calls import Costs
from katz_graph.planner.searching.candidate import Candidate, CandidateTimer, Timed
from katz_graph.planner.searching.placement_rules import PlacementRules
from katz_graph.planner.searching.space import Space
from katz_graph.planner.simulation.simulate import simulate

MAX_TIMED_OF_ALL, MAX_TIMED_OF_BEAM = 240, 60
"""Maximum numbers of candidates to time, separately without and with stale ControlNets: from all
placements, where bounds can prove the best, and from a beam search.
"""
MIN_TIMED = 4
"""Minimum number of timed candidates, for comparison, even if their bounds exceed the best time."""
MAX_STARTS = 8
"""Maximum number of best candidates that the local search starts from."""
MAX_MOVES_TIMED = 60
"""Maximum number of candidates that the local search times."""
MAX_TIMED_PER_ROUND = 6
"""Maximum number of neighbours of each kind timed per round, lowest bounds first."""
BETTER = 1 - 1e-6
MAX_APPROXIMATE_SHARE = (
    0.98  # of the best exact time: an approximating plan must be faster than this
)
LISTED = 6


def search(program: Program) -> Program:
    """Sets `placement`, `sampler_device`, `stale`, `calls`, `before_calls`, `alternatives` and
    `notes` to the fastest choice. Raises InputError if no placement satisfies pins and memory.
    """
    costs = Costs(program)
    bench = CandidateTimer(program, PlacementRules(program), costs)
    return chosen(bench, _Search(bench).run())


class _Search:
    def __init__(self, bench: CandidateTimer) -> None:
        self._bench = bench
        batching = bench.program.target.batching
        self._space = Space(bench, bench.bounds)
        self._options = (
            (False, True)
            if batching is None or len(bench.program.target.devices) == 1
            else (batching,)
        )
        self._max_timed = MAX_TIMED_OF_ALL if self._space.all_enumerated else MAX_TIMED_OF_BEAM
        self._found: dict[Candidate, list[Timed]] = {}  # merged and separate, faster first

    def run(self) -> list[Timed]:
        """Searches and returns all timed candidates."""
        beginnings = self._space.beginnings()
        proven = self._best_first(beginnings)
        proven &= self._best_first(self._space.with_stale(beginnings))
        if proven and self._space.all_enumerated:
            return [one for timed in self._found.values() for one in timed]
        for start in sorted(
            (timed[0] for timed in self._found.values()), key=lambda one: one.seconds
        )[:MAX_STARTS]:
            self._climb(start)
        return [one for timed in self._found.values() for one in timed]

    def _best_first(self, candidates: Sequence[Candidate]) -> bool:
        """Times candidates in the order of their bounds, until no bound is below the best time.
        Times at least one on a single device and one on several. Returns false if untimed
        candidates have a bound below the best time.
        """
        bounds = self._bench.least_seconds(candidates, self._best())
        order = [candidates[place] for place in np.argsort(bounds, kind="stable")]
        least = np.sort(bounds)
        timed = 0
        while timed < len(order) and (
            timed < MIN_TIMED or (timed < self._max_timed and least[timed] < self._best() * BETTER)
        ):
            self._time(order[timed])
            timed += 1
        kinds = {len(set(candidate.devices)) > 1 for candidate in self._found}
        for candidate in order:
            if (several := len(set(candidate.devices)) > 1) not in kinds:
                kinds.add(several)
                self._time(candidate)
        return timed == len(order) or bool(least[timed] >= self._best() * BETTER)

    def _climb(self, start: Timed) -> None:
        """Moves to faster neighbours, up to a limit, until none is faster."""
        current, limit = start, len(self._found) + MAX_MOVES_TIMED // MAX_STARTS
        while len(self._found) < limit:
            promising: list[Candidate] = []
            for kind in self._space.near(current.candidate):
                fresh = [one for one in kind if one not in self._found]
                bounds = self._bench.least_seconds(fresh, current.seconds)
                order = np.argsort(bounds, kind="stable")[:MAX_TIMED_PER_ROUND]
                promising += [
                    fresh[place] for place in order if bounds[place] < current.seconds * BETTER
                ]
            best = min(
                (self._time(one) for one in promising), key=lambda one: one.seconds, default=current
            )
            if best.seconds >= current.seconds * BETTER:
                return
            current = best

    def _best(self) -> float:
        return min((timed[0].seconds for timed in self._found.values()), default=float("inf"))

    def _time(self, candidate: Candidate) -> Timed:
        if candidate not in self._found:
            timed = [
                one
                for merged in self._options
                if (one := self._bench.timed(candidate, merged)) is not None
            ]
            if not timed:  # batching is requested, but no stages are equal
                timed = [one for one in [self._bench.timed(candidate, False)] if one is not None]
            self._found[candidate] = sorted(timed, key=lambda one: one.seconds)
        return self._found[candidate][0]


def chosen(bench: CandidateTimer, found: Sequence[Timed]) -> Program:
    """Returns the program of the best candidate, with `alternatives`, `chosen` and `notes`."""
    describer = Describer(bench.program)

    def name(one: Timed) -> str:
        return describer.name(
            bench.placement(one.candidate),
            one.candidate.sampler_device,
            one.candidate.stale,
            one.merged,
        )

    def simple(one: Timed) -> tuple[int, int, int, int, float, bool]:
        used = len({*one.candidate.devices, one.candidate.sampler_device})
        placement = bench.placement(one.candidate)
        modules, crossings = bench.sites.copies(placement), describer.crossings(placement)
        return (
            len(one.candidate.stale),
            crossings,
            modules,
            used,
            round(one.seconds, 9),
            one.merged,
        )

    def best(some: Sequence[Timed]) -> Timed:
        limit = min(one.seconds for one in some) * (1 + TIE_TOLERANCE)
        return min((one for one in some if one.seconds <= limit), key=simple)

    named: dict[str, list[Timed]] = {}
    for one in sorted(found, key=lambda one: one.seconds):
        named.setdefault(name(one), []).append(one)
    every = [best(group) for group in named.values()]
    kinds = [
        [one for one in every if not one.candidate.stale],
        [one for one in every if one.candidate.stale],
        [one for one in every if len(set(one.candidate.devices)) == 1],
        [one for one in every if len(set(one.candidate.devices)) > 1],
    ]
    listed = dict.fromkeys([*every[:LISTED], *(best(kind) for kind in kinds if kind)])
    timed = [replace(one, seconds=bench.exact_seconds(one)) for one in listed]
    batching = bench.program.target.batching
    wanted = [one for one in timed if batching is None or one.merged == batching] or timed
    winner = exact_or_stale(wanted, best)
    program = replace(bench.built(winner), stale=tuple(sorted(winner.candidate.stale)))
    program = decompose(program) if program.stale else program
    others = sorted((one for one in timed if one != winner), key=lambda one: one.seconds)
    compared = [
        Compared(name(one), bench.built(one), bool(one.candidate.stale), one.seconds)
        for one in others
    ]
    alternatives = {name(one): one.seconds for one in sorted(timed, key=lambda one: one.seconds)}
    on_one = [one.seconds for one in timed if len(set(one.candidate.devices)) == 1]
    return replace(
        program,
        alone=min(on_one) / winner.seconds if on_one and winner.seconds else None,
        alternatives=alternatives,
        chosen=name(winner),
        notes=notes(program, simulate(program), compared),
    )


def exact_or_stale(timed: Sequence[Timed], best: Callable[[Sequence[Timed]], Timed]) -> Timed:
    """Returns the best candidate without stale ControlNets. A candidate with stale ControlNets wins
    only if it takes less than MAX_APPROXIMATE_SHARE of the best exact time.
    """
    exact = [one for one in timed if not one.candidate.stale]
    stale = [one for one in timed if one.candidate.stale]
    winner = best(exact or stale)
    if (
        exact
        and stale
        and min(one.seconds for one in stale) < MAX_APPROXIMATE_SHARE * winner.seconds
    ):
        return best(stale)
    return winner
