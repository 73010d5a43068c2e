"""Runs the passes in order, from a bound region to a program. `after` stops after one pass, so that
its result can be inspected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from katz_graph.core.errors import InputError
from katz_graph.ir.device import Target
from katz_graph.ir.program import EvaluationPoint, Program
from katz_graph.ir.region import Region
from katz_graph.ir.reuse import OfferedTemplate
from katz_graph.planner.passes.cost import Count, Length, Unprepared, all_prepared, cost
from katz_graph.planner.passes.decompose import decompose
from katz_graph.planner.passes.deferred_loras import (
    HasTextWeights,
    Profiled,
    defer_loras,
    no_profile,
)
from katz_graph.planner.passes.emit import emit
from katz_graph.planner.passes.hoist import hoist
from katz_graph.planner.passes.reuse import CountLayers, reuse, uncounted
from katz_graph.planner.passes.segment import segment
from katz_graph.planner.passes.variants import Decide, variants
from katz_graph.planner.searching.placement_rules import DoesNotFit
from katz_graph.planner.searching.search import search
from katz_graph.planner.simulation.simulate import simulate

Pass = Callable[[Program], Program]

PASSES = (
    "expand",
    "variants",
    "fit",
    "hoist",
    "late",
    "decompose",
    "cost",
    "search",
    "reuse",
    "segment",
    "emit",
)


@dataclass(frozen=True, slots=True)
class Known:
    """Holds the inputs of a compilation other than the region and the target."""

    schedule: Sequence[EvaluationPoint]
    decide: Decide  # answers conditions
    shape: tuple[int, ...]  # [B, C, h, w]
    count: Count  # work of an operation
    length: Length  # of a prompt, in tokens
    fit: Callable[[Program], Program]  # raises InputError if models do not fit each other
    profiled: Profiled = no_profile
    taken_by_texts: HasTextWeights = lambda file: True
    unprepared: Unprepared = all_prepared
    template: OfferedTemplate | None = None  # None: no activations are reused
    count_layers: CountLayers = uncounted  # work of an operation by layer, with a template


def compile_region(region: Region, known: Known, target: Target, after: str = "emit") -> Program:
    """Runs the passes up to and including `after`. Raises InputError for an unknown pass, and for
    faults that the passes find in the region.
    """
    if after not in PASSES:
        raise InputError(f"--after {after}: no such pass; choose one of {', '.join(PASSES)}")
    steps: dict[str, Pass] = {
        "variants": lambda program: variants(program, known.decide),
        "fit": known.fit,
        "hoist": hoist,
        "late": lambda program: defer_loras(program, known.profiled, known.taken_by_texts),
        "decompose": decompose,
        "cost": lambda program: cost(
            program, known.shape, known.count, known.length, known.unprepared
        ),
        "search": search,
        "reuse": lambda program: reuse(program, known.template, known.count_layers),
        "segment": segment,
        "emit": emit,
    }
    program = Program(region, tuple(known.schedule), target, region.name)
    for name in PASSES[1 : PASSES.index(after) + 1]:
        if name == "hoist":
            unhoisted = program
        try:
            program = steps[name](program)
        except DoesNotFit:
            if not program.held:
                raise
            program = _without_prefix(program, unhoisted, steps)
    return program


def _without_prefix(program: Program, unhoisted: Program, steps: Mapping[str, Pass]) -> Program:
    """Searches a plan that computes the tokens before the picture in every evaluation, because
    their keys and values do not fit. Adds a note with the seconds of both plans.
    """
    whole = hoist(unhoisted, prefix=False)
    for name in PASSES[PASSES.index("hoist") + 1 : PASSES.index("search") + 1]:
        whole = steps[name](whole)
    roomy = [
        replace(device, memory_bytes=math.inf, room_bytes=math.inf)
        for device in program.target.devices
    ]
    wide = search(replace(program, target=replace(program.target, devices=tuple(roomy))))
    held = sum(program.held.values()) / 1e9
    rooms = ", ".join(
        f"{one.name} {min(one.memory_bytes, one.room_bytes) / 1e9:.2f} GB"
        for one in program.target.devices
    )
    note = (
        f"text and references are computed in every evaluation, {simulate(whole).seconds:.3f} s: "
        f"their keys and values need {held:.2f} GB in addition to the models and would save "
        f"{simulate(whole).seconds - simulate(wide).seconds:.3f} s; devices have {rooms}"
    )
    return replace(whole, notes=(*whole.notes, note))
