"""Defines a plan as data, for `katz plan --json` and servers. Must not know programs; imports no
model library.
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

    `node` is the submitted workflow's node: one of an explicit step region, else the sampler.
    `branch` names the conditioning entry of a sampler's operation, such as negative2; else empty.
    `label` is for display. `recorded`: CUDA devices may record the calls as CUDA graphs.
    `unprepared`: module blocks that run their library's forward on GPUs, with the reason.
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
    """Carries `bytes` from an output to an input. `delay` is the age of the value in evaluations.
    `stale`: the plan added the delay; the workflow has none.
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
    """Describes one call, of one operation or several equal ones."""

    operations: tuple[str, ...]
    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class HoistedCall:
    """Describes a call that precedes the loop and runs once per request."""

    operations: tuple[str, ...]
    stage: str
    seconds: float
    device: str


@dataclass(frozen=True, slots=True)
class DescribedSegment:
    """Describes consecutive calls of one device. `beside`: indices of calls that may run
    concurrently with the next call on a GPU.
    """

    name: str
    device: str
    calls: tuple[DescribedCall, ...]
    beside: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribedVariant:
    """Describes one kind of evaluation. `operations` are in topological order; `edges` lead into
    them and into the region's end. `carried` are the slots that the next evaluation reads.
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
    """Describes one activity of a device, or of a direction of a link ("cpu:1 -> cpu:0"), in
    seconds from the start of its timeline. `after`: the index of the span it waited for.
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
    """Holds a part of the simulation. `first` is its first evaluation, `boundaries` are the times
    of predictions, `rows` are devices, each between its loads from templates and its outgoing
    links.
    """

    first: int
    seconds: float
    boundaries: tuple[float, ...]
    rows: tuple[str, ...]
    spans: tuple[DescribedSpan, ...]


@dataclass(frozen=True, slots=True)
class DescribedEvaluations:
    """Describes consecutive evaluations of one kind: the number of them, the rows of the largest
    call, and the seconds of one alone. Requests may share evaluations of equal keys, which then
    take `seconds_by_rows`, for 1, 2, 4, 8 and 16 rows of all requests; without a key they share
    none.
    """

    number: int
    rows: int
    alone_seconds: float
    key: str
    seconds_by_rows: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class DescribedPrediction:
    """Predicts the seconds of a request: as planned, with free communication and unlimited devices,
    and one operation after the other. Also predicts an evaluation's steady period and names its
    limit (`binding`). `evaluation_seconds`: seconds until each prediction, from the one before.
    `evaluations`: those of a request whose devices other requests may use.
    """

    planned_seconds: float
    ideal_seconds: float
    sequential_seconds: float
    period_seconds: float
    binding: str
    evaluation_seconds: tuple[float, ...]
    evaluations: tuple[DescribedEvaluations, ...]


@dataclass(frozen=True, slots=True)
class DescribedReuse:
    """Describes the reuse of a template's activations in an evaluation of the commonest kind: its
    seconds in full, with all layers cached and as chosen, the numbers of layers that may be cached
    and are, the bytes that it loads and the seconds of the busiest link. `active_share`: of the
    tokens. `layers` maps operations to their cached layers. `why_not` is the reason if there are
    none.
    """

    full_seconds: float
    cached_seconds: float
    chosen_seconds: float
    layer_count: int
    cached_layer_count: int
    bytes_loaded: float
    load_seconds: float
    active_share: float
    layers: Mapping[str, tuple[str, ...]]
    why_not: str


@dataclass(frozen=True, slots=True)
class DescribedStart:
    """Describes a start from the picture of a similar prompt: the picture's id, the cosine
    similarity of both prompts' encodings, and the evaluations that it saves, of those of the full
    request. `why_not` is the reason if there is no such picture.
    """

    picture: str
    similarity: float
    evaluations_saved: int
    evaluations_in_full: int
    why_not: str


@dataclass(frozen=True, slots=True)
class DescribedPlan:
    """Describes the plan of one sampler. Results of passes that have not run are empty or null.

    `operations` lists hoisted operations first; `before_edges` lead into hoisted operations.
    `begin` and `end` are nodes of the step region, which edges also name. `alternatives` maps
    considered plans to seconds; `chosen` is this plan's key. `instructions` maps devices to counts.
    `prologue` is the part before the first prediction, `timeline` shows two steady evaluations.
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
    reuse: DescribedReuse | None = None
    similar_start: DescribedStart | None = None


PLAN: TypeAdapter[DescribedPlan] = TypeAdapter(DescribedPlan)
"""Converts plans to data, by alias."""


class _Described:
    """Gives a field of plain data the JSON schema of a plan."""

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(PLAN.core_schema)


PlanData = Annotated[Mapping[str, Any], _Described()]
"""A plan as plain data. Code of any version that forwards a plan leaves it unchanged."""
