"""Executes the calls that requests offer: each alone, or the rows of several requests in one call.

A row of a shared call differs from its own call only by rounding; with a fixed number of rows in
each call it has the same bits in any company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any, TypeVar

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.calls.batching import mapped, merge, split
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.calls.row_stacks import Member, RowStacks, alike
from katz_graph.executor.calls.rows import taken
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.stream import Lap
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.ir.program import EvaluationRun
from katz_graph.kernels.attention import attention_order
from katz_graph.models.stages import Outputs
from katz_graph.serving.seconds import CallSeconds

Item = TypeVar("Item")
# seconds of a call with LoRAs by row / with merged ones, until it is measured: rank 16 on CPUs
LORA_ROWS_COST = 1.18
EVALUATIONS = 20  # whose median pace corrects predicted seconds
MEAN_EVALUATIONS = 100  # whose measured seconds are summed
MAX_SLOWDOWN = 4.0  # of an evaluation in that sum


class StageCalls:
    """Executes offers on a device. A stage has no side effects, so a call is retried after memory
    is freed, and after an error of a shared call each request is tried alone.
    """

    def __init__(self, models: DeviceModels, rows: SharedRows = ALONE) -> None:
        self._models, self._rows = models, rows
        self._stacks = RowStacks()
        self._most: dict[str, int] = {}  # share key -> rows that fit into memory
        self._seconds = CallSeconds()  # by share key
        self._evaluations = CallSeconds()  # by key of evaluation
        # predicted and measured seconds of the last evaluations
        self._measured: deque[tuple[float, float]] = deque(maxlen=MEAN_EVALUATIONS)
        # measured / planned seconds of the last evaluations that one request ran alone
        self._paces: deque[float] = deque(maxlen=EVALUATIONS)
        # share key, rows, and whether they have LoRAs, of calls that may not be complete
        self._laps: deque[tuple[str, int, bool, Lap]] = deque()
        # seconds of the last calls with LoRAs by row, divided by those predicted with merged ones
        self._lora_costs: deque[float] = deque(maxlen=EVALUATIONS)

    def most_rows(self, key: str) -> int:
        """Returns the most rows of a shared call with this key."""
        return self._most.get(key, self._rows.most)

    @property
    def pace(self) -> float:
        """Returns the median of measured by planned seconds of the last evaluations."""
        return median(self._paces) if self._paces else 1.0

    def ran(self, planned: float, seconds: float) -> None:
        """Adds an evaluation that one request ran alone, and the seconds of its calls."""
        self._learn()
        if planned > 0:
            self._paces.append(seconds / planned)

    def expect(self, key: str, seconds: Sequence[float]) -> None:
        """Sets the planned seconds of calls with this key, by ROW_BUCKETS."""
        if self._rows.most:
            self._seconds.expect(key, dict(zip(ROW_BUCKETS, seconds, strict=True)))

    def expect_evaluations(self, run: EvaluationRun) -> None:
        """Sets the seconds of evaluations with a run's key until some have run."""
        if run.key:
            self._evaluations.expect(run.key, dict(zip(ROW_BUCKETS, run.seconds, strict=True)))

    def ran_evaluation(self, key: str, rows: int, seconds: float) -> None:
        """Adds an evaluation of one request or several: the rows of all, and its seconds."""
        if not key:
            return
        if (predicted := self._evaluations.seconds(key, rows)) is not None:
            # the first call of a form may take much longer, and is not repeated
            self._measured.append((predicted, min(seconds, MAX_SLOWDOWN * predicted)))
        self._evaluations.add(key, rows, seconds)

    def evaluation_seconds(self, key: str) -> tuple[float, ...]:
        """Returns the mean seconds of evaluations with a key, by ROW_BUCKETS. Where other programs
        disturb the device it is above the median, and several evaluations take their sum.
        """
        predicted = sum(one for one, _ in self._measured)
        mean = sum(one for _, one in self._measured) / predicted if predicted else 1.0
        return tuple(mean * (self._evaluations.seconds(key, rows) or 0.0) for rows in ROW_BUCKETS)

    @property
    def shares(self) -> bool:
        """Returns whether requests may share calls."""
        return self._rows.most > 0

    @property
    def always_by_row(self) -> bool:
        """Returns whether LoRAs are never merged if rows may have them, so that bytes do not depend
        on other requests.
        """
        return self._rows.fixed

    def seconds(self, keys: Collection[str], rows: int, by_row: bool = False) -> float | None:
        """Predicts the seconds of a call of each known key (`CallSeconds.optimistic_seconds`); None
        if all are unknown. `by_row`: rows have the LoRAs of their requests.
        """
        self._learn()
        rows = self._wanted(rows)
        found = [self._seconds.optimistic_seconds(key, rows) for key in keys]
        cost = self._lora_cost if by_row else 1.0
        return cost * sum(one for one in found if one is not None) or None

    def _learn(self) -> None:
        """Adds the seconds of completed calls to the predictions."""
        if not (self._laps and self._laps[0][3].known):
            return
        while self._laps and self._laps[0][3].known:
            key, measured, with_loras, lap = self._laps.popleft()
            cost = self._lora_cost if with_loras else 1.0
            merged = self._seconds.seconds(key, measured)
            if with_loras and merged is not None:
                self._lora_costs.append(lap.seconds / merged)
            self._seconds.add(key, measured, lap.seconds / cost)
        use = self._models.compute.use
        use.predicted_seconds, use.measured_seconds = (
            self._seconds.predicted,
            self._seconds.measured,
        )
        use.median_error, use.p95_error = self._seconds.error(0.5), self._seconds.error(0.95)

    @property
    def _lora_cost(self) -> float:
        return median([LORA_ROWS_COST, *self._lora_costs])

    def alone(self, offer: Offer) -> Sequence[Outputs]:
        """Computes the calls of one request."""
        if self._rows.fixed and offer.calls[0].stage.shareable:
            calls = [_absorbed(call) if _absorbs(call) else call for call in offer.calls]
            offers = [
                replace(offer, sizes=(size,), factors=(factors,), forms=(forms,))
                for size, factors, forms in zip(
                    offer.sizes, offer.factors, offer.forms, strict=True
                )
            ]
            return [self._stacked([one])[0] for one in map(self._member, offers, calls)]
        calls = self._models.residents.with_room(offer.what, partial(self._with_loras, offer))
        return self._counted([offer], partial(self._computed, calls))

    def _with_loras(self, offer: Offer) -> list[StageCall]:
        return [
            self._stacks.with_loras(_cut_out(call), [factors], [size], size)
            for call, size, factors in zip(offer.calls, offer.sizes, offer.factors, strict=True)
        ]

    def together(self, offers: Sequence[Offer]) -> list[Sequence[Outputs] | Exception]:
        """Computes offers of one key: those of equal form in one call. Returns the outputs, or the
        error, of each.
        """
        if len(offers) == 1:
            return self._tried(offers)
        calls = [offer.calls[0] for offer in offers]
        if any(map(_absorbs, calls)):
            calls = list(map(_absorbed, calls))
        found: dict[int, Sequence[Outputs] | Exception] = {}
        for group in alike(list(map(self._member, offers, calls))):
            results = self._tried([member.offer for member in group], group)
            found |= {id(member.offer): one for member, one in zip(group, results, strict=True)}
        return [found[id(offer)] for offer in offers]

    def _member(self, offer: Offer, call: StageCall) -> Member:
        return self._stacks.member(offer, call, any_tokens=not self._rows.fixed)

    def _tried(
        self, offers: Sequence[Offer], members: Sequence[Member] = ()
    ) -> list[Sequence[Outputs] | Exception]:
        """Computes offers of equal form. If memory runs out, tries halves; after another error,
        each alone.
        """
        try:
            if len(offers) == 1:
                return [self.alone(offers[0])]
            return [(outputs,) for outputs in self._stacked(members)]
        except Exception as error:
            if len(offers) == 1:
                return [error]
            size = 1
            if isinstance(error, OutOfMemory):
                size = (len(offers) + 1) // 2
                self._most[offers[0].key] = max(
                    sum(offer.rows for offer in part) for part in _cut(offers, size)
                )
        parts = zip(_cut(offers, size), _cut(members, size), strict=True)
        return [result for part in parts for result in self._tried(*part)]

    def _stacked(self, members: Sequence[Member]) -> list[Outputs]:
        """Computes a call of each member, stacked along the rows."""
        offers, rows = [one.offer for one in members], [one.offer.rows for one in members]
        wanted = self._wanted(sum(rows))
        if sum(rows) > wanted:  # one request with more rows than a call has
            (member,) = members
            return [self._in_parts(member.offer, member.call, wanted)]
        call = self._stacks.stacked(members, rows, wanted)
        (made,) = self._counted(offers, partial(self._computed, [call]))
        return self._stacks.parts(made, rows, wanted)

    def _wanted(self, rows: int) -> int:
        """Returns the number of rows to compute: filled up with copies of the last one."""
        if self._rows.fixed:
            return self._rows.most
        if not self._models.compute.records:
            return rows
        return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), rows)

    def _in_parts(self, offer: Offer, call: StageCall, most: int) -> Outputs:
        """Computes a call in parts of `most` rows."""
        made = []
        for start in range(0, offer.rows, most):
            size = min(most, offer.rows - start)
            part = call._replace(given=_rows_of(_cut_out(call).given, offer.rows, start, size))
            filled = self._stacks.stacked([self._member(offer, part)], [size], most)
            (outputs,) = self._counted([offer], partial(self._computed, [filled]))
            made.append(split(outputs, [size, most - size])[0])
        return tuple(merge(made))

    def _counted(
        self, offers: Sequence[Offer], compute: Callable[[], Sequence[Outputs]]
    ) -> Sequence[Outputs]:
        models, first = self._models, offers[0]
        for offer in offers:
            assert models.resident_in(offer.calls[0].module) == offer.loras, (
                f"{offer.what} would compute with the LoRAs of another model"
            )
        use = models.compute.use
        before, lap = use.calls, models.stream.timing()
        # no closure, because an error's traceback would keep its values alive
        made = models.residents.with_room(first.what, compute)
        by_row = any(any(offer.factors) for offer in offers)
        use.lora_rows += by_row
        if first.key and self._rows.most:
            rows = self._wanted(sum(offer.rows for offer in offers))
            self._laps.append((first.key, rows, by_row, lap()))
        if len(offers) > 1:
            use.shared += 1
            use.shared_rows += sum(offer.rows for offer in offers)
        new = use.calls_since(before)
        for offer in offers:
            offer.count(new)
        return made

    def _computed(self, calls: Sequence[StageCall]) -> Sequence[Outputs]:
        in_order = attention_order(self._models.device)
        with in_order if calls[0].stage.recorded else nullcontext():
            return self._models.compute.together(calls)


def _rows_of(given: Mapping[str, Any], rows: int, start: int, size: int) -> dict[str, Any]:
    """Returns some rows of a call's inputs; tensors with other numbers of rows apply to all."""
    return {
        name: mapped(
            value,
            lambda tensor: tensor[start : start + size] if len(tensor) == rows else tensor,
        )
        for name, value in given.items()
    }


def _absorbs(call: StageCall) -> bool:
    """Returns whether a call has inputs that other requests may not have."""
    prefix = call.stage.absorbs
    return bool(prefix) and any(name.startswith(prefix) for name in call.given)


def _absorbed(call: StageCall) -> StageCall:
    return call._replace(given=call.stage.absorbed(_cut_out(call).given))


def _cut_out(call: StageCall) -> StageCall:
    """Cuts the rows of its request out of a call's inputs."""
    return call._replace(given={name: taken(value) for name, value in call.given.items()})


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
