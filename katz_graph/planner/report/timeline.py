"""Cuts two steady evaluations out of the simulation that a plan's times come from: what pictures of
a plan show, here and in clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from katz_graph.ir.program import Program
from katz_graph.planner.simulation.simulate import SimulatedSpan, Simulation, simulate

EVALUATIONS = 2


@dataclass(frozen=True, slots=True)
class PlannedTimeline:
    """Holds what devices and links are busy with between two times, in seconds on the virtual
    clock.

    `first` is the first evaluation. `boundaries`: where the sampler has a prediction, the begin of
    the first included. `rows`: devices in their order, each with the links that lead away from it.
    `spans` have in `after` their place here, None for one before `start`.
    """

    first: int
    start: float
    end: float
    boundaries: tuple[float, ...]
    rows: tuple[str, ...]
    spans: tuple[SimulatedSpan, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns it as plain data, with times from `start` on."""
        return {
            "first": self.first,
            "seconds": self.end - self.start,
            "boundaries": [at - self.start for at in self.boundaries],
            "rows": list(self.rows),
            "spans": [
                {
                    "resource": span.resource,
                    "what": span.what,
                    "stage": span.stage,
                    "evaluation": span.evaluation,
                    "start": span.start - self.start,
                    "seconds": span.seconds,
                    "after": span.after,
                }
                for span in self.spans
            ],
        }


def planned_timeline(program: Program) -> PlannedTimeline:
    """Simulates a program whose calls are known."""
    simulation = simulate(program)
    first, start, end = _window(simulation)
    kept = [
        number
        for number, span in enumerate(simulation.spans)
        if span.seconds and span.start < end and span.start + span.seconds > start
    ]
    places = {number: place for place, number in enumerate(kept)}
    spans = tuple(
        replace(span, after=None if span.after is None else places.get(span.after))
        for span in (simulation.spans[number] for number in kept)
    )
    ends = simulation.ends[first : first + EVALUATIONS]
    boundaries = (start, *ends) if ends else ()
    return PlannedTimeline(first, start, end, boundaries, tuple(_rows(program, spans)), spans)


def _window(simulation: Simulation) -> tuple[int, float, float]:
    """Returns the first of the two evaluations, when it begins and when the second ends."""
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
                device.name,
                *(f"{device.name} -> {other.name}" for other in program.target.devices),
            )
            if name in used
        ]
    return rows or [device.name for device in program.target.devices]
