"""Describes a program as data, after any pass, and names operations for display."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from katz_graph.ir.program import Call, Program
from katz_graph.ir.region import Operation, Region, SimilarStart
from katz_graph.ir.reuse import active_share
from katz_graph.models.stage_registry import stages
from katz_graph.planner.queries import opaque_functions
from katz_graph.planner.report.document import (
    PLAN,
    DescribedCall,
    DescribedEvaluations,
    DescribedLink,
    DescribedOperation,
    DescribedPlan,
    DescribedPrediction,
    DescribedReuse,
    DescribedSegment,
    DescribedStart,
    DescribedVariant,
    DescribedWork,
    HoistedCall,
)
from katz_graph.planner.report.edges import Edges
from katz_graph.planner.report.timeline import planned_prologue, planned_timeline
from katz_graph.planner.simulation.simulate import simulate

PART = re.compile(r"(?:.*\.)?(?P<branch>[^.#-]+)-(?P<what>[^.#]+)(?:#\d+)?")
"""Matches the id of a sampler's operation, such as 5.positive2-controlnet1."""
NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True, slots=True)
class OperationName:
    """Holds the branch of an operation, and its label within the branch, such as ControlNet 2."""

    branch: str
    label: str


def name_of(operation: Operation, region: Region) -> OperationName:
    """Names an operation of a region, or one hoisted from the region."""
    stage = stages().get(operation.stage)
    label = (stage.label if stage else "") or operation.stage.replace("_", " ")
    found = PART.fullmatch(operation.id)
    if found is None or region.node_of(operation.id) == operation.id:
        return OperationName("", label if stage and stage.compute else operation.type)
    number = NUMBER.search(found["what"])
    return OperationName(found["branch"], f"{label} {number[0]}" if number else label)


def as_json(program: Program) -> dict[str, Any]:
    """Returns `described` as plain data."""
    data: dict[str, Any] = PLAN.dump_python(described(program), mode="json", by_alias=True)
    return data


def described(program: Program) -> DescribedPlan:
    """Describes the results of the passes that have run so far."""
    edges, target, region = Edges(program), program.target, program.region
    simulation = simulate(program) if program.segments else None
    return DescribedPlan(
        sampler=program.name,
        evaluations=len(program.schedule),
        latent=program.shape,
        devices=tuple(device.name for device in target.devices),
        dtype=target.devices[0].dtype,
        pinned_by=opaque_functions(region),
        begin=region.begin.id,
        end=region.end.id,
        operations=tuple(_operations(program)),
        hoisted=tuple(operation.id for operation in program.before),
        before=tuple(
            HoistedCall(call.operations, call.stage, call.seconds, call.device)
            for call in program.before_calls
        ),
        before_edges=tuple(edge for one in program.before for edge in edges.before(one)),
        variants=tuple(_variants(program, edges)),
        work={
            name: DescribedWork(work.flops, work.weight_bytes)
            for name, work in program.work.items()
        },
        placement=program.placement,
        owner=program.sampler_device,
        delayed=program.stale,
        pins=target.pins,
        allowed=tuple(sorted(target.allowed)),
        links=tuple(
            DescribedLink(source, to, link.bytes_per_second, link.latency)
            for (source, to), link in target.links.items()
        ),
        alternatives=program.alternatives,
        chosen=program.chosen,
        notes=program.notes,
        instructions={device: len(entries) for device, entries in program.instructions.items()},
        prologue=planned_prologue(program, simulation).described() if simulation else None,
        timeline=planned_timeline(program, simulation).described() if simulation else None,
        prediction=_prediction(program),
        reuse=_reuse(program),
        similar_start=_start(region.similar),
    )


def _operations(program: Program) -> Iterator[DescribedOperation]:
    for operation in program.before:
        yield _operation(program, operation, hoisted=True)
    looped = (
        {op.id: op for variant in program.variants for op in variant.operations}.values()
        if program.variants
        else program.region.operations
    )
    for operation in looped:
        yield _operation(program, operation, hoisted=False)


def _operation(program: Program, operation: Operation, hoisted: bool) -> DescribedOperation:
    name, stage = name_of(operation, program.region), stages().get(operation.stage)
    return DescribedOperation(
        id=operation.id,
        label=name.label,
        stage=operation.stage,
        type=operation.type,
        branch=name.branch,
        node=program.region.node_of(operation.id),
        hoisted=hoisted,
        recorded=stage is not None and stage.recorded and bool(stage.compute),
        unprepared=program.unprepared.get(operation.id, ()),
    )


def _variants(program: Program, edges: Edges) -> Iterator[DescribedVariant]:
    for number, variant in enumerate(program.variants):
        segments = program.segments[number] if program.segments else ()
        yield DescribedVariant(
            name=variant.name,
            evaluations=variant.evaluations,
            tree=str(program.trees[number]) if program.trees else None,
            operations=tuple(operation.id for operation in variant.operations),
            edges=edges.of(variant),
            carried=tuple(variant.carried),
            segments=tuple(
                DescribedSegment(
                    one.name,
                    one.device,
                    tuple(map(_call, one.calls)),
                    one.concurrent if program.target.device(one.device).is_gpu else (),
                )
                for one in segments
            ),
        )


def _call(call: Call) -> DescribedCall:
    return DescribedCall(call.operations, call.stage, call.seconds)


def _prediction(program: Program) -> DescribedPrediction | None:
    known = program.prediction
    if known is None:
        return None
    return DescribedPrediction(
        known.planned,
        known.ideal,
        known.sequential,
        known.period,
        known.binding,
        known.evaluations,
        tuple(
            DescribedEvaluations(run.number, run.rows, run.alone, run.key, run.seconds)
            for run in program.runs
        ),
    )


def _start(found: SimilarStart | None) -> DescribedStart | None:
    if found is None:
        return None
    return DescribedStart(
        found.picture, found.similarity, found.saved, found.evaluations, found.why_not
    )


def _reuse(program: Program) -> DescribedReuse | None:
    found = program.reuse
    if found is None:
        return None
    return DescribedReuse(
        found.full,
        found.cached,
        found.chosen,
        found.layers,
        found.cached_layers,
        found.bytes_loaded,
        found.load_seconds,
        active_share(found.active),
        program.reused,
        found.why_not,
    )
