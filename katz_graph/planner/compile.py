"""Runs the passes in order, from a bound region to a program. `after` stops after one pass, so that
its result can be inspected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from katz_graph.planner.searching.search import search

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
    steps: dict[str, Callable[[Program], Program]] = {
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
        program = steps[name](program)
    return program
