"""Pass *reuse*: chooses the transformer layers that read a template's activations (InstGenIE,
section 4), and changes the seconds of calls accordingly.

The store of templates is a device without computation. Each device loads over a link from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from math import inf

from katz_graph.ir.device import NetworkLink, Work
from katz_graph.ir.program import Call, Program, Variant
from katz_graph.ir.region import Operation
from katz_graph.ir.reuse import STORE, OfferedTemplate, Reuse, active_share
from katz_graph.models.costs.counts import Counts
from katz_graph.models.costs.layers import LayeredWork
from katz_graph.models.family import only_all_tokens
from katz_graph.models.stages import Extent
from katz_graph.planner.queries import commonest_variant
from katz_graph.planner.region import stage_of
from katz_graph.planner.searching.layer_choice import EvaluationTimes, LayerTimes
from katz_graph.planner.simulation.simulate import simulate
from katz_graph.planner.simulation.views import Views

MAX_ACTIVE_SHARE = 0.5
MIN_GAIN = 0.02  # of a request's seconds
LEADS = (1.0, 0.5, 0.25, 0.125, 0.0)  # shares of the longest lead of the loads that are tried
CountLayers = Callable[[Operation, tuple[int, ...], int, Mapping[int, int]], LayeredWork]
Choose = Callable[[EvaluationTimes], Sequence[bool]]


def reuse(program: Program, template: OfferedTemplate | None, count: CountLayers) -> Program:
    """Sets `reuse`, `reused`, `template` and the calls' seconds, if the store offers a template.

    `count(operation, latent shape, tokens, active)` returns an operation's work by layer. A request
    that would not gain computes all layers in full; `Reuse.why_not` has the reason.
    """
    if template is None:
        return program
    before = simulate(program)
    share = active_share(template.active)
    too_many = f"{share:.0%} of the tokens are active, more than half"
    reason = why_in_full(program) or (too_many if share > MAX_ACTIVE_SHARE else "")
    if reason:
        unread = Reuse(before.period, active=template.active, why_not=reason)
        return replace(program, reuse=unread)
    whole, program = program, _apart(program, template.evaluations)
    layers = _Layers(program, template, count)
    every = layers.chosen(lambda times: (True,) * len(times.layers))
    if not every.reused:
        why = "the template has none of the network's layers"
        return replace(whole, reuse=Reuse(before.period, active=template.active, why_not=why))
    # the first evaluation has no loads ahead, so plans for shorter leads may be better
    found = (layers.chosen(partial(_best, share=share)) for share in LEADS)
    choices = [*{tuple(one.reused.items()): one for one in found}.values(), every]
    results = [simulate(one) for one in choices]
    best = min(range(len(choices)), key=lambda one: results[one].seconds)
    after, all_cached = results[best], replace(_reported(every), cached=results[-1].period)
    gain = 1 - after.seconds / before.seconds if before.seconds else 0.0
    if gain < MIN_GAIN:
        why = f"the request would gain {max(0.0, gain):.1%}, less than {MIN_GAIN:.0%}"
        unused = Reuse(
            before.period,
            all_cached.cached,
            before.period,
            all_cached.cached_layers,
            active=template.active,
            why_not=why,
        )
        return replace(whole, reuse=unused)
    report = replace(
        _reported(choices[best]),
        full=before.period,
        cached=all_cached.cached,
        chosen=after.period,
        layers=all_cached.cached_layers,
    )
    return replace(choices[best], reuse=report, template=template.use)


def _apart(program: Program, covered: frozenset[int]) -> Program:
    """Divides each kind of evaluation into those that the template covers, and the others."""
    found = []
    for variant, tree, calls in zip(program.variants, program.trees, program.calls, strict=True):
        for name, reads in ((variant.name, True), (f"{variant.name}-full", False)):
            those = tuple(one for one in variant.evaluations if (one in covered) == reads)
            if those:
                found.append((replace(variant, name=name, evaluations=those), tree, calls))
    variants, trees, every = zip(*found, strict=True)
    return replace(program, variants=variants, trees=trees, calls=every)


def _best(times: EvaluationTimes, share: float) -> tuple[bool, ...]:
    """Returns the best layers if loads have a share of the lead that they may have."""
    return replace(times, ahead=share * times.ahead).best()


def _reported(program: Program) -> Reuse:
    assert program.reuse is not None
    return program.reuse


def uncounted(
    operation: Operation, shape: tuple[int, ...], tokens: int, active: Mapping[int, int]
) -> LayeredWork:
    """Counts no layers."""
    return LayeredWork((), Work())


def count_layers(
    operation: Operation,
    shape: tuple[int, ...],
    tokens: int,
    active: Mapping[int, int],
    value_bytes: int,
    counts: Counts,
) -> LayeredWork:
    """Counts the work of one operation by layer for a latent [B, C, h, w] and a text of `tokens`
    tokens. active: by number of tokens of a level, the number of active ones.
    """
    count = stage_of(operation).count_layers
    assert count is not None
    return count(operation.inputs, Extent(shape, tokens, value_bytes), counts, active)


def why_in_full(program: Program) -> str:
    """Returns the reason if no layer may read any template; empty if layers may."""
    references = any(op.inputs.get("references") is not None for op in program.before)
    reason = only_all_tokens(program.region.begin.inputs["model"], references)
    if reason:
        return reason
    operations = {op.id: op for variant in program.variants for op in variant.operations}.values()
    layered = [operation for operation in operations if _may_read(program, operation)]
    if not layered:
        names = dict.fromkeys(
            stage.label or stage.name
            for stage in map(stage_of, operations)
            if stage.costed and stage.module == "model"
        )
        return f"the stages cannot compute active tokens only: {', '.join(names)}"
    views = Views(program)
    if any(
        views.part(operation, variant)
        for variant in program.variants
        for operation in variant.operations
        if operation in layered
    ):
        return "the conditioning has areas"
    return ""


def _may_read(program: Program, operation: Operation) -> bool:
    """Returns whether an operation runs layers of the sampler's model that can compute active
    tokens only.
    """
    model = program.region.begin.inputs["model"]
    return stage_of(operation).count_layers is not None and operation.inputs.get("model") == model


@dataclass(frozen=True, slots=True)
class _Slot:
    """Describes a layer that may be cached, in the order of a device's calls."""

    operations: tuple[str, ...]  # of its call
    name: str
    times: LayerTimes
    size: float  # bytes of its tensor
    earlier: float  # of `times.before`: seconds before its call


@dataclass(frozen=True, slots=True)
class _Line:
    """Describes the calls of one device in one kind of evaluation."""

    calls: tuple[Call, ...]
    slots: tuple[_Slot, ...]
    # by call: the number of slots until its end, and the seconds from the last of them to its end
    ends: tuple[tuple[int, float], ...]
    ahead: float
    recorded: bool  # the device replays recorded calls

    @property
    def times(self) -> EvaluationTimes:
        after = self.ends[-1][1] if self.ends else 0.0
        return EvaluationTimes(tuple(slot.times for slot in self.slots), after, self.ahead)

    def timed(self, cached: Sequence[bool]) -> Iterator[Call]:
        """Yields the calls with their seconds in steady state."""
        ends = [0.0, *self.times.ends(cached)]
        clock = [0.0, *(ends[number] + rest for number, rest in self.ends)]
        left = {call.operations: call.seconds for call in self.calls}
        for slot, reads in zip(self.slots, cached, strict=True):
            if reads:
                left[slot.operations] -= slot.times.full - slot.times.cached
        for call, (begin, end) in zip(self.calls, pairwise(clock), strict=True):
            seconds = left[call.operations]
            computed = seconds / call.seconds if call.seconds else 1.0
            waits = max(0.0, end - begin - seconds)
            yield replace(call, seconds=end - begin, computed=computed, waits=waits)

    def loads(self, cached: Sequence[bool]) -> tuple[tuple[str, float], ...]:
        """Returns the operation of each call that loads, and the seconds of its loads."""
        found: dict[str, float] = {}
        for slot, reads in zip(self.slots, cached, strict=True):
            if reads:
                name = slot.operations[0]
                found[name] = found.get(name, 0.0) + slot.times.load
        return tuple(found.items())

    def first(self, cached: Sequence[bool], lead: float) -> float:
        """Returns the seconds of the first evaluation, whose loads begin `lead` seconds before. A
        layer waits for its own tensor, a recorded call for those of all its layers.
        """
        if not self.recorded:
            return self.times.first(cached, lead)
        layers: list[LayerTimes] = []
        for _, group in groupby(
            zip(self.slots, cached, strict=True), lambda one: one[0].operations
        ):
            slots = list(group)
            loads = sum(slot.times.load for slot, reads in slots if reads)
            # the whole call's tensors arrive before it begins
            layers.append(LayerTimes(slots[0][0].earlier, 0.0, 0.0, loads))
            for slot, reads in slots:
                before = slot.times.before - slot.earlier
                layers.append(LayerTimes(before, slot.times.seconds(reads), 0.0, 0.0))
        loading = [layer.load > 0 for layer in layers]
        return replace(self.times, layers=tuple(layers)).first(loading, lead)


class _Layers:
    """Chooses the cached layers of a program."""

    def __init__(self, program: Program, template: OfferedTemplate, count: CountLayers) -> None:
        self._program, self._template, self._count = program, template, count
        self._devices = {device.name: device for device in program.target.devices}
        self._ahead = template.ahead_bytes / template.bytes_per_second
        self._lines = [
            {
                device: self._line(variant, [call for call in calls if call.device == device])
                for device in dict.fromkeys(call.device for call in calls)
            }
            for variant, calls in zip(program.variants, program.calls, strict=True)
        ]

    def chosen(self, choose: Choose) -> Program:
        """Returns the program with the layers that `choose` selects for each device and kind of
        evaluation. An operation has the same layers in all kinds, those of the commonest.
        """
        program, every = self._program, list(self._program.calls)
        reused: dict[str, dict[str, bool]] = {}  # by operation: layers, and whether they are cached
        waits: dict[str, float] = {}
        report = Reuse(0.0, active=self._template.active, ahead=self._ahead)
        numbers = range(len(program.variants))
        for number in sorted(numbers, key=lambda one: -len(program.variants[one].evaluations)):
            timed: dict[tuple[str, ...], Call] = {}
            for device, line in self._lines[number].items():
                cached = choose(_with_decisions(line, reused))
                for slot, reads in zip(line.slots, cached, strict=True):
                    for name in slot.operations:
                        reused.setdefault(name, {})[slot.name] = reads
                timed |= {call.operations: call for call in line.timed(cached)}
                if 0 in program.variants[number].evaluations:
                    first = line.first(cached, self._seconds_before(device))
                    waits[device] = max(0.0, first - line.times.period(cached))
                if number == commonest_variant(program):
                    taken = [slot for slot, reads in zip(line.slots, cached, strict=True) if reads]
                    report = replace(
                        report,
                        cached_layers=report.cached_layers
                        + sum(len(slot.operations) for slot in taken),
                        bytes_loaded=report.bytes_loaded + sum(slot.size for slot in taken),
                        load_seconds=max(report.load_seconds, line.times.loads(cached)),
                        loads={**report.loads, device: line.loads(cached)},
                    )
            every[number] = tuple(timed[call.operations] for call in every[number])
        layers = {
            name: tuple(layer for layer, reads in found.items() if reads)
            for name, found in reused.items()
        }
        rate = self._template.bytes_per_second
        links = {(STORE, device): NetworkLink(rate, 0.0) for device in report.loads}
        return replace(
            program,
            target=replace(program.target, links={**program.target.links, **links}),
            calls=tuple(every),
            reused={name: found for name, found in layers.items() if found},
            reuse=replace(report, first_waits=waits),
        )

    def _seconds_before(self, device: str) -> float:
        """Returns the seconds of a device's calls before the loop, during which it may load."""
        return sum(call.seconds for call in self._program.before_calls if call.device == device)

    def _line(self, variant: Variant, calls: Sequence[Call]) -> _Line:
        operations = {operation.id: operation for operation in variant.operations}
        covered = variant.evaluations[0] in self._template.evaluations
        slots: list[_Slot] = []
        ends: list[tuple[int, float]] = []
        rest = 0.0  # seconds since the last slot
        for call in calls:
            operation = operations[call.operations[0]]
            if covered and call.seconds and _may_read(self._program, operation):
                rest = self._extend(slots, call, operation, rest)
            else:
                rest += call.seconds
            ends.append((len(slots), rest))
        recorded = bool(calls) and self._devices[calls[0].device].is_gpu
        return _Line(tuple(calls), tuple(slots), tuple(ends), self._ahead, recorded)

    def _extend(self, slots: list[_Slot], call: Call, operation: Operation, rest: float) -> float:
        """Appends the layers of a call, and returns the seconds after the last one. The call's
        seconds are divided in proportion to the roofline of its parts.
        """
        work, device = self._work(operation), self._devices[call.device]
        if not work.layers:
            return rest + call.seconds
        members = len(call.operations)

        def estimate(part: Work) -> float:
            return device.seconds(part.batched(members))

        parts = [estimate(part) for layer in work.layers for part in (layer.before, layer.full)]
        scale, earlier = call.seconds / (sum(parts) + estimate(work.after)), rest
        for layer in work.layers:
            before, full, cached = (
                scale * estimate(part) for part in (layer.before, layer.full, layer.cached)
            )
            if self._template.layers is not None and layer.name not in self._template.layers:
                rest += before + full
                continue
            rows = members * self._program.rows[operation.id]
            size = float(rows * layer.tokens * layer.width * device.value_bytes)
            times = LayerTimes(rest + before, full, cached, size / self._template.bytes_per_second)
            slots.append(_Slot(call.operations, layer.name, times, size, earlier))
            rest = earlier = 0.0
        return rest + scale * estimate(work.after)

    def _work(self, operation: Operation) -> LayeredWork:
        program = self._program
        shape, tokens = program.shape_at(operation.id), program.tokens[operation.id]
        return self._count(operation, shape, tokens, self._template.active)


def _with_decisions(line: _Line, reused: Mapping[str, Mapping[str, bool]]) -> EvaluationTimes:
    """Returns the times of a line in which a layer of a decided operation has only one choice, with
    a lead that is no longer than an evaluation.
    """
    times, found = line.times, []
    for slot in line.slots:
        reads = reused.get(slot.operations[0], {}).get(slot.name)
        free = {True: {"full": inf}, False: {"cached": inf}, None: {}}
        found.append(replace(slot.times, **free[reads]))
    ahead = min(times.ahead, times.period((False,) * len(times.layers)))
    return replace(times, layers=tuple(found), ahead=ahead)
