"""Pass *segment*: the longest runs of calls on one device with nothing arriving or leaving in between. Each becomes one CUDA graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from katz_graph.planner.program import Call, Program, Segment


def segment(program: Program) -> Program:
    """Fills `segments`, per variant in order of execution."""
    return replace(
        program,
        segments=tuple(_segments(variant.name, calls) for variant, calls in zip(program.variants, program.calls, strict=True)),
    )


def _segments(variant: str, calls: Sequence[Call]) -> tuple[Segment, ...]:
    runs = [(device, tuple(run)) for device, run in groupby(calls, key=lambda call: call.device)]
    return tuple(Segment(f"{variant}.{number}", device, run) for number, (device, run) in enumerate(runs))
