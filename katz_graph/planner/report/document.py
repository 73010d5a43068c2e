"""Defines a plan as data: what `katz plan --json` prints and servers tell. Must not know programs;
imports no model library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

From = Annotated[str, Field(alias="from")]
To = Annotated[str, Field(alias="to")]


@dataclass(frozen=True, slots=True)
class DescribedOperation:
    """Describes a computation of the loop, or one that precedes it (`hoisted`).

    `node` is the node of the submitted workflow that it stands for: of a region that somebody drew
    its own, else the sampler. `branch` is the conditioning entry that a sampler's operation
    computes: positive, negative2; empty where it belongs to none. `label` names it for people.
    `recorded`: on a CUDA device its calls may be recorded as CUDA graphs; `unprepared`: blocks of
    its modules that GPUs compute as their library does, with the reason.
    """

    id: str
    label: str
    stage: str
    type: str
    branch: str
    node: str
    hoisted: bool
    recorded: bool
    unprepared: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DescribedEdge:
    """Carries `bytes` from an output to an input. `delay`: how many evaluations ago the value was
    made; `stale` where a plan delayed what the workflow does not.
    """

    source: From
    output: int
    target: To
    input: str
    bytes: float
    delay: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class DescribedCall:
    """Describes one call, of several equal operations where there is more than one."""

    operations: tuple[str, ...]
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HoistedCall:
    """Describes a call that precedes the loop, once a request."""

    operations: tuple[str, ...]
    stage: str
    seconds: float
    device: str


@dataclass(frozen=True, slots=True)
class DescribedSegment:
    """Describes calls of one device that nothing interrupts. `beside`: on a GPU, the numbers of
    those that may run at the same time as the next one.
    """

    name: str
    device: str
    calls: tuple[DescribedCall, ...]
    beside: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedVariant:
    """Describes one kind of evaluation. `operations` in topological order; `edges` into them, and
    into the region's end. `carried`: slots that the next evaluation reads.
    """

    name: str
    evaluations: tuple[int, ...]
    tree: str | None
    operations: tuple[str, ...]
    edges: tuple[DescribedEdge, ...]
    carried: tuple[int, ...]
    segments: tuple[DescribedSegment, ...]


@dataclass(frozen=True, slots=True)
class DescribedWork:
    """Counts the work of one operation."""

    flops: float
    weight_bytes: float


@dataclass(frozen=True, slots=True)
class DescribedLink:
    """Describes one direction between two devices."""

    source: From
    target: To
    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True)
class DescribedSpan:
    """Says what a device, or a direction of a link ("cpu:1 -> cpu:0"), is busy with, in seconds
    from the begin of its timeline. `after`: the place there of the span that it waited for.
    """

    resource: str
    what: str
    stage: str
    evaluation: int | None
    start: float
    seconds: float
    after: int | None


@dataclass(frozen=True, slots=True)
class DescribedTimeline:
    """Holds a part of the simulation: `first` is its first evaluation, `boundaries` are where the
    sampler has a prediction, `rows` devices with the links that lead away from them.
    """

    first: int
    seconds: float
    boundaries: tuple[float, ...]
    rows: tuple[str, ...]
    spans: tuple[DescribedSpan, ...]


@dataclass(frozen=True, slots=True)
class DescribedPrediction:
    """Predicts the seconds of a request: as planned, with free communication and endless devices,
    one operation after the other; and of an evaluation once it repeats, with what binds it.
    """

    planned_seconds: float
    ideal_seconds: float
    sequential_seconds: float
    period_seconds: float
    binding: str


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """Describes the plan of one sampler. What the passes have not made yet is empty or null.

    `operations` are all, hoisted ones first; `before_edges` lead into these, from others of them.
    `begin` and `end` are the ends of the step region, which edges name as well. `alternatives`:
    what was considered, in seconds, and `chosen`, which of them was taken. `instructions`: how many
    each device has. `prologue` is what precedes the first prediction, `timeline` two steady
    evaluations.
    """

    sampler: str
    evaluations: int
    latent: tuple[int, ...]
    devices: tuple[str, ...]
    dtype: str
    pinned_by: tuple[str, ...]
    begin: str
    end: str
    operations: tuple[DescribedOperation, ...]
    hoisted: tuple[str, ...]
    before: tuple[HoistedCall, ...]
    before_edges: tuple[DescribedEdge, ...]
    variants: tuple[DescribedVariant, ...]
    work: Mapping[str, DescribedWork]
    placement: Mapping[str, str]
    owner: str
    delayed: tuple[str, ...]
    pins: Mapping[str, tuple[str, ...]]
    allowed: tuple[str, ...]
    links: tuple[DescribedLink, ...]
    alternatives: Mapping[str, float]
    chosen: str
    notes: tuple[str, ...]
    instructions: Mapping[str, int]
    prologue: DescribedTimeline | None
    timeline: DescribedTimeline | None
    prediction: DescribedPrediction | None


PLAN: TypeAdapter[DescribedPlan] = TypeAdapter(DescribedPlan)
"""Plans to data; by alias."""


class _Described:
    """Has a field of plain data described as what that was made of."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(PLAN.core_schema)


PlanData = Annotated[Mapping[str, Any], _Described()]
"""A plan as plain data: whoever passes it on, or comes from another version, leaves it as it is."""
