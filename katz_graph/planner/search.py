"""Pass *search*: where everything runs, what shares a call, and which ControlNets are one evaluation behind: the fastest on the simulator.

Candidates come from the series-parallel tree and are taken in the order of a lower bound; stages of the best are then moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from katz_graph.planner.bound import Bounds
from katz_graph.planner.calls import Costs
from katz_graph.planner.candidate import Candidate, Timed, Workbench
from katz_graph.planner.choose import chosen
from katz_graph.planner.program import Program
from katz_graph.planner.sites import Sites
from katz_graph.planner.space import Space

TIMED = 60  # candidates that are timed at most, of those without and of those with delays, and again while stages are moved
AT_LEAST = 4  # so that there is something to compare with
STARTS = 8  # best candidates whose stages are moved
NEAREST = 6  # of each kind that are timed in one round, those with the least bound
BETTER = 1 - 1e-6


def search(program: Program, batching: bool | None = None) -> Program:
    """Fills `placement`, `owner`, `delayed`, `calls`, `before_calls`, `alternatives` and `notes` with the fastest choice.

    `batching` decides beforehand whether equal stages share a call. InputError when no placement holds pins and memory.
    """
    costs = Costs(program)
    bench = Workbench(program, Sites(program), costs)
    return chosen(bench, _Search(bench, Bounds(program, costs, batching), batching).run(), batching)


class _Search:
    def __init__(self, bench: Workbench, bounds: Bounds, batching: bool | None) -> None:
        self._bench, self._bounds = bench, bounds
        self._space = Space(bench, bounds)
        self._options = (False, True) if batching is None or len(bench.program.devices) == 1 else (batching,)
        self._found: dict[Candidate, list[Timed]] = {}  # the faster one of merged or not first

    def run(self) -> list[Timed]:
        """What was timed."""
        beginnings = self._space.beginnings()
        self._best_first(beginnings)
        self._best_first(self._space.delayed(beginnings))
        for start in sorted((timed[0] for timed in self._found.values()), key=lambda one: one.seconds)[:STARTS]:
            self._climb(start)
        return [one for timed in self._found.values() for one in timed]

    def _best_first(self, candidates: Iterable[Candidate]) -> None:
        """Times candidates in the order of their bounds, until no bound is below the best time; some on one device and on several."""
        heap = [(self._occupation(candidate), False, number, candidate) for number, candidate in enumerate(candidates)]
        heapify(heap)
        before = len(self._found)
        while heap and len(self._found) - before < TIMED:
            bound, refined, number, candidate = heappop(heap)
            if not refined:
                heappush(heap, (self._bound(candidate, bound), True, number, candidate))
            elif bound < self._best() * BETTER or len(self._found) - before < AT_LEAST:
                self._time(candidate)
            else:
                heappush(heap, (bound, True, number, candidate))
                break
        kinds = {len(set(candidate.devices)) > 1 for candidate in self._found}
        for *_, candidate in sorted(heap):
            if (several := len(set(candidate.devices)) > 1) not in kinds:
                kinds.add(several)
                self._time(candidate)

    def _climb(self, start: Timed) -> None:
        """Goes from a candidate to a faster one near it, for as long as there is one."""
        current, limit = start, len(self._found) + TIMED // STARTS
        while len(self._found) < limit:
            promising: list[Candidate] = []
            for kind in self._space.near(current.candidate):
                bounds = {one: self._bound(one) for one in kind if one not in self._found}
                better = [one for one in bounds if bounds[one] < current.seconds * BETTER]
                promising += sorted(better, key=bounds.__getitem__)[:NEAREST]
            best = min((self._time(one) for one in promising), key=lambda one: one.seconds, default=current)
            if best.seconds >= current.seconds * BETTER:
                return
            current = best

    def _bound(self, candidate: Candidate, least: float = 0.0) -> float:
        return self._bounds.seconds(self._bench.placement(candidate), candidate.owner, candidate.delayed, least)

    def _occupation(self, candidate: Candidate) -> float:
        return self._bounds.occupation(self._bench.placement(candidate), candidate.owner)

    def _best(self) -> float:
        return min((timed[0].seconds for timed in self._found.values()), default=float("inf"))

    def _time(self, candidate: Candidate) -> Timed:
        if candidate not in self._found:
            timed = [one for merged in self._options if (one := self._bench.timed(candidate, merged)) is not None]
            if not timed:  # batching is wanted, and nothing is equal
                timed = [one for one in [self._bench.timed(candidate, False)] if one is not None]
            self._found[candidate] = sorted(timed, key=lambda one: one.seconds)
        return self._found[candidate][0]
