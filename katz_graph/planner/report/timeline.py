"""Cuts two parts of a plan's simulation for display: the time before the first prediction, and two
steady evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from katz_graph.ir.program import Program
from katz_graph.ir.reuse import STORE
from katz_graph.planner.report.document import DescribedSpan, DescribedTimeline
from katz_graph.planner.simulation.simulate import SimulatedSpan, Simulation

EVALUATIONS = 2
SPANS = 2_000  # of one timeline; later ones are left out


@dataclass(frozen=True, slots=True)
class PlannedTimeline:
    """Holds the activity of devices and links between two times, in seconds on the virtual
    clock.
    """

    first: int  # evaluation
    start: float
    end: float
    boundaries: tuple[float, ...]  # begin of the first evaluation, then the time of each prediction
    # devices in order, each after its loads from templates and before its outgoing links
    rows: tuple[str, ...]
    # `after` is an index into this tuple, None for a span before `start`
    spans: tuple[SimulatedSpan, ...]

    def described(self) -> DescribedTimeline:
        """Returns the timeline with times relative to `start`."""
        return DescribedTimeline(
            self.first,
            self.end - self.start,
            tuple(at - self.start for at in self.boundaries),
            self.rows,
            tuple(
                DescribedSpan(
                    span.resource,
                    span.what,
                    span.stage,
                    span.evaluation,
                    span.start - self.start,
                    span.seconds,
                    span.after,
                )
                for span in self.spans
            ),
        )


def planned_timeline(program: Program, simulation: Simulation) -> PlannedTimeline:
    """Cuts two evaluations from the middle of a program's simulation."""
    first, start, end = _window(simulation)
    ends = simulation.ends[first : first + EVALUATIONS]
    return _cut(program, simulation, first, start, end, (start, *ends) if ends else ())


def planned_prologue(program: Program, simulation: Simulation) -> PlannedTimeline:
    """Cuts the part before the first prediction."""
    end = simulation.ends[0] if simulation.ends else simulation.seconds
    return _cut(program, simulation, 0, 0.0, end, (end,))


def _cut(
    program: Program,
    simulation: Simulation,
    first: int,
    start: float,
    end: float,
    boundaries: tuple[float, ...],
) -> PlannedTimeline:
    shown = [
        number
        for number, span in enumerate(simulation.spans)
        if span.seconds and span.start < end and span.start + span.seconds > start
    ][:SPANS]
    places = {number: place for place, number in enumerate(shown)}

    def waited_for(after: int | None) -> int | None:
        while after is not None and after not in places:  # zero time, or before `start`
            after = simulation.spans[after].after
        return None if after is None else places[after]

    spans = tuple(
        replace(span, after=waited_for(span.after))
        for span in (simulation.spans[number] for number in shown)
    )
    return PlannedTimeline(first, start, end, boundaries, tuple(_rows(program, spans)), spans)


def _window(simulation: Simulation) -> tuple[int, float, float]:
    """Returns the first of the two evaluations, its start and the end of the second."""
    count = len(simulation.ends)
    if not count:
        return 0, 0.0, simulation.seconds
    first = max(0, min(simulation.steady or 0, count - EVALUATIONS))
    return (
        first,
        simulation.ends[first - 1] if first else 0.0,
        simulation.ends[min(first + 1, count - 1)],
    )


def _rows(program: Program, spans: Sequence[SimulatedSpan]) -> list[str]:
    used = {span.resource for span in spans}
    rows: list[str] = []
    for device in program.target.devices:
        rows += [
            name
            for name in (
                f"{STORE} -> {device.name}",
                device.name,
                *(f"{device.name} -> {other.name}" for other in program.target.devices),
            )
            if name in used
        ]
    return rows or [device.name for device in program.target.devices]
