"""Explains a program: its predicted seconds, the term that limits it, and the reasons why
alternatives lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from katz_graph.core.recipe import ModelRecipe
from katz_graph.files.urls import shown
from katz_graph.ir.program import Prediction, Program
from katz_graph.ir.provenance import STALE_CONTROLNET
from katz_graph.ir.reuse import STORE
from katz_graph.models.family import family_of
from katz_graph.planner.queries import adapters, reading_key, unprofiled
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.calls import Costs
from katz_graph.planner.searching.placement_rules import PlacementRules
from katz_graph.planner.simulation.simulate import ADVANCE, STEP, Simulation, simulate

BINDS = 0.98  # share of the period: a resource that is busy this long limits the plan
# relative difference below which two times count as equal: the accuracy of predictions
TIE_TOLERANCE = 0.01
MIN_PERIOD_SHARE = 0.005  # share of the period: shorter parts of a path are not listed


@dataclass(frozen=True, slots=True)
class Compared:
    """A candidate that lost."""

    name: str
    program: Program
    stale: bool
    seconds: float


def predict(program: Program) -> Prediction:
    """Predicts the plan's seconds from a simulation of the whole request.

    Ideal means free communication and unlimited devices as fast as the fastest; sequential, one
    operation after the other on the sampler's device.
    """
    simulation, costs = simulate(program), Costs(program)
    devices = [device.name for device in program.target.devices]
    before = sum(
        call.seconds for call in program.before_calls if call.device == program.sampler_device
    )
    ideal = sequential = before
    for variant, tree, calls in zip(program.variants, program.trees, program.calls, strict=True):
        count = len(variant.evaluations)
        computed = {name: call.computed for call in calls for name in call.operations}

        def seconds(name: str, device: str, computed: Mapping[str, float] = computed) -> float:
            return computed[name] * costs.seconds(name, 1, device)

        ideal += count * tree.fold(lambda name: min(seconds(name, device) for device in devices))
        sequential += count * sum(
            seconds(operation.id, program.sampler_device) for operation in variant.operations
        )
    return Prediction(
        simulation.seconds,
        ideal,
        sequential,
        simulation.period,
        binding(program, simulation),
        tuple(end - before for before, end in pairwise((0.0, *simulation.ends))),
    )


def binding(program: Program, simulation: Simulation) -> str:
    """Names the term that limits the steady period, with figures: the work of a device, the bytes
    over a link, or a path.
    """
    period = simulation.period
    if simulation.steady is None or not simulation.busy:
        return "nothing: no evaluation computes anything"
    devices = {device.name for device in program.target.devices}
    used = {name for name in simulation.busy if name in devices}
    busiest = max(simulation.busy, key=lambda name: (simulation.busy[name], name in devices))
    if program.reuse and program.reuse.link_binds and not program.reuse.why_not:
        links = [name for name in simulation.busy if name.startswith(f"{STORE} -> ")]
        busiest = max(links, key=lambda name: simulation.busy[name], default=busiest)
    if simulation.busy[busiest] >= BINDS * period:
        if busiest in devices:
            seconds = simulation.busy[busiest]
            of = f" of {_ms(period)}" if len(used) > 1 else ""
            return f"work on {busiest}: {_ms(seconds)}{of} per evaluation"
        return f"the link {_occupancy(program, simulation, busiest)} of {_ms(period)}"
    parts, seconds, evaluations = _path(simulation)
    over = (
        f" over {evaluations} evaluations, {_ms(period)} each"
        if evaluations > 1
        else " per evaluation"
    )
    return f"the path {' + '.join(parts)} = {_ms(seconds)}{over}"


def notes(program: Program, simulation: Simulation, others: Sequence[Compared]) -> tuple[str, ...]:
    """Explains the choice in sentences; `others` are the alternatives, the fastest first."""
    return tuple(_notes(program, simulation, others))


def reading_notes(program: Program, prediction: Prediction) -> Iterator[str]:
    """Yields each LoRA's measured read time, and whether steps hide it."""
    deferred = program.deferred_loras
    waits = {} if deferred is None else dict(zip(deferred.files, deferred.waits, strict=True))
    sampler = program.target.device(program.sampler_device)
    for file in adapters(program):
        seconds = sampler.measured.get((reading_key(file), 0, False))
        took = "a time not known yet" if seconds is None else f"{seconds:.3f} s"
        name = f"LoRA {PurePath(shown(file.path)).name} ({file.size / 1e6:.3g} MB)"
        if file not in waits:
            yield f"{name}: read before the first step in {took}, unless in memory"
            continue
        hides = waits[file] * prediction.period
        without = f"the {waits[file]} evaluations that may run without it take {hides:.3f} s"
        hidden = (
            ""
            if seconds is None
            else (": hidden" if seconds <= hides else ": not all of it hidden")
        )
        yield f"{name}: read in {took}, {without}{hidden}"


def profile_note(program: Program) -> Iterator[str]:
    """Yields the share of model calls that are estimated because no profile measured them."""
    estimated, total = unprofiled(program)
    if estimated:
        yield (
            f"{estimated} of {total} kinds of calls are predicted from the devices' rates, not "
            "measured; they may take twice as long (`katz profile` measures them)"
        )


def _notes(program: Program, simulation: Simulation, others: Sequence[Compared]) -> Iterator[str]:
    if len(program.target.devices) == 1 or not program.placement:
        return
    used = {*program.placement.values(), program.sampler_device}
    several = next(
        (
            one
            for one in others
            if len({*one.program.placement.values(), one.program.sampler_device}) > 1
        ),
        None,
    )
    if len(used) > 1:
        slower = next(
            (one for one in others if one.seconds >= simulation.seconds * (1 - TIE_TOLERANCE)), None
        )
        if slower is not None:
            yield f"{slower.name} was not chosen: {_against(simulation, slower)}"
        if len(used) < len(program.target.devices):
            yield (
                f"{len(used)} of {len(program.target.devices)} devices are used: more would not "
                "be faster"
            )
    elif several is not None:
        yield (
            f"one of {len(program.target.devices)} devices is used: {several.name} was not "
            f"chosen: {_against(simulation, several)}"
        )
    elif program.target.pins or PlacementRules(program).is_short:
        yield (
            f"one of {len(program.target.devices)} devices is used: pins or memory allow nothing "
            "else"
        )
    else:
        yield (
            f"one of {len(program.target.devices)} devices is used: an evaluation has nothing to "
            "run concurrently"
        )
    if STALE_CONTROLNET in program.target.allowed and not program.stale:
        yield from _why_not_stale(program, simulation, others)


def _why_not_stale(
    program: Program, simulation: Simulation, others: Sequence[Compared]
) -> Iterator[str]:
    if not any(
        stage_of(operation).stale_output is not None
        for variant in program.variants
        for operation in variant.operations
    ):
        yield "stale-controlnet is allowed and changes nothing: the plan has no ControlNet"
        return
    stale = next((one for one in others if one.stale), None)
    if stale is None:
        yield (
            "stale-controlnet is allowed and changes nothing: no ControlNet can run on another "
            "device than its reader"
        )
        return
    its = simulate(stale.program)
    busiest = max(
        (name for name in its.busy if " -> " in name), key=lambda name: its.busy[name], default=""
    )
    if its.busy.get(busiest, 0.0) >= simulation.period:
        yield (
            "stale-controlnet is allowed and does not help: the link "
            f"{_occupancy(stale.program, its, busiest)}, "
            f"more than the {_ms(simulation.period)} of an evaluation without it"
        )
    else:
        yield (
            f"stale-controlnet is allowed and not worth its error: {stale.name} would take "
            f"{stale.seconds:.3f} s, " + (f"this plan {simulation.seconds:.3f} s")
        )


def _against(simulation: Simulation, other: Compared) -> str:
    more = other.seconds / simulation.seconds - 1 if simulation.seconds else 0.0
    if abs(more) < TIE_TOLERANCE and not other.stale:
        return (
            f"{other.seconds:.3f} s, equal within {TIE_TOLERANCE:.0%}, and sends more or holds "
            "more models"
        )
    return (
        f"{other.seconds:.3f} s, {abs(more):.1%} {'more' if more >= 0 else 'less'}, bound by "
        f"{_bound_of(other)}"
    )


def _bound_of(other: Compared) -> str:
    return binding(other.program, simulate(other.program))


def _occupancy(program: Program, simulation: Simulation, resource: str) -> str:
    """Formats a link's load, such as cpu:1 -> cpu:0: 12.3 MB per evaluation at 1 GB/s = 12.3 ms."""
    source, _, target = resource.partition(" -> ")
    link = program.target.links[source, target]
    seconds = simulation.busy[resource]
    size, rate = seconds * link.bytes_per_second, link.bytes_per_second
    return (
        f"{resource}: {size / 1e6:.3g} MB per evaluation at {rate / 1e9:.3g} GB/s = {_ms(seconds)}"
    )


def _path(simulation: Simulation) -> tuple[list[str], float, int]:
    """Walks from a steady prediction back over the span that each span waited for, to a step of the
    sampler. Returns parts, seconds, evaluations.
    """
    assert simulation.steady is not None
    spans = simulation.spans
    number = next(
        n
        for n, span in enumerate(spans)
        if span.what == ADVANCE and span.evaluation == simulation.steady
    )
    end, after = spans[number].start, spans[number].after
    began = end
    parts: list[str] = []
    while after is not None:
        span = spans[after]
        if span.what == STEP and not span.stage and " -> " not in span.resource:
            return parts, end - began, simulation.steady - (span.evaluation or 0) + 1
        seconds = began - span.start  # includes a link's latency
        if seconds >= MIN_PERIOD_SHARE * simulation.period:
            parts.insert(0, f"{span.what} on {span.resource} {_ms(seconds)}")
        began, after = span.start, span.after
    return parts, end - began, simulation.steady + 1


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


BATCHED, SPLIT = "equal stages batched", "one call per branch"


class Describer:
    """Names placements of a program's operations."""

    def __init__(self, program: Program) -> None:
        operations = {
            op.id: op
            for variant in program.variants
            for op in variant.operations
            if stage_of(op).costed
        }
        self._controls = {
            name for name, op in operations.items() if stage_of(op).module == "control_net"
        }
        self._sessions = {
            name for name, op in operations.items() if stage_of(op).stale_output is not None
        }
        self._edges = {
            (ref.operation, op.id)
            for variant in program.variants
            for op in variant.operations
            for _, ref in op.references()
            if ref.operation in operations and op.id in operations
        }
        self._alone = len(program.target.devices) == 1
        self._model: ModelRecipe = program.region.begin.inputs["model"]

    def crossings(self, placement: Mapping[str, str]) -> int:
        """Counts the edges between model calls on different devices."""
        return sum(placement[source] != placement[reader] for source, reader in self._edges)

    def name(
        self, placement: Mapping[str, str], sampler_device: str, stale: Set[str], merged: bool
    ) -> str:
        if self._alone:
            return BATCHED if merged else SPLIT
        batched = f", {BATCHED}" if merged else ""
        if len({*placement.values(), sampler_device}) == 1:
            return f"one device{batched}"
        return ", ".join(self._parts(placement, stale)) + batched

    def _parts(self, placement: Mapping[str, str], stale: Set[str]) -> list[str]:
        base = {device for name, device in placement.items() if name not in self._controls}
        apart = sorted({placement[name] for name in self._controls} - base)
        crossing = {pair for pair in self._edges if placement[pair[0]] != placement[pair[1]]}
        controlnets = {
            source
            for source, reader in crossing
            if source in self._sessions and reader not in self._controls
        }
        parts = []
        if len(base) > 1:
            split = any(source not in self._controls for source, _ in crossing)
            what = (
                f"{family_of(self._model.network).network.noun} split over"
                if split
                else "branches on"
            )
            parts.append(f"{what} {len(base)} devices")
        if apart:
            parts.append(
                f"controlnet on {apart[0]}"
                if len(apart) == 1
                else f"controlnets on {len(apart)} further devices"
            )
        if any(placement[name] not in apart for name in controlnets):
            parts.append("controlnet apart from its reader")
        if controlnets:
            parts.append(
                "synchronous"
                if not stale
                else "one evaluation stale"
                if stale >= controlnets
                else "some one evaluation stale"
            )
        return parts
