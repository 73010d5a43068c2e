"""Executes the calls that requests offer: each alone, or the rows of several requests in one call.

A row of a shared call differs from its own call only by rounding; with a fixed number of rows in
each call it has the same bits in any company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.calls.batching import mapped, merge, split, tensors_of
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.recorded.inputs import form_of
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.stream import Lap
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.kernels.attention import attention_order
from katz_graph.models.stage_registry import stage as stage_named
from katz_graph.models.stages import Outputs
from katz_graph.serving.seconds import CallSeconds

Item = TypeVar("Item")


class StageCalls:
    """Executes offers on a device. A stage has no side effects, so a call is retried after memory
    is freed, and after an error of a shared call each request is tried alone.
    """

    def __init__(self, models: DeviceModels, rows: SharedRows = ALONE) -> None:
        self._models, self._rows = models, rows
        self._stacks = RowStacks()
        self._most: dict[str, int] = {}  # share key -> rows that fit into memory
        self._seconds = CallSeconds()  # by share key
        self._laps: deque[tuple[str, int, Lap]] = deque()  # of calls that may not be complete

    def most_rows(self, key: str) -> int:
        """Returns the most rows of a shared call with this key."""
        return self._most.get(key, self._rows.most)

    def expect(self, key: str, seconds: Sequence[float]) -> None:
        """Sets the planned seconds of calls with this key, by ROW_BUCKETS."""
        if self._rows.most and key and seconds:
            self._seconds.expect(key, dict(zip(ROW_BUCKETS, seconds, strict=True)))

    def seconds(self, keys: Collection[str], rows: int) -> float | None:
        """Predicts the seconds of a call of each key that ran before (`CallSeconds.estimate`); None
        if none did.
        """
        while self._laps and self._laps[0][2].known:
            key, measured, lap = self._laps.popleft()
            self._seconds.add(key, measured, lap.seconds)
        use = self._models.compute.use
        use.predicted_seconds, use.measured_seconds = (
            self._seconds.predicted,
            self._seconds.measured,
        )
        rows = self._wanted(rows)
        found = [self._seconds.estimate(key, rows) for key in keys]
        return sum(one for one in found if one is not None) or None

    def alone(self, offer: Offer) -> Sequence[Outputs]:
        """Computes the calls of one request."""
        if self._rows.fixed and offer.calls[0].stage.shareable:
            calls = [_absorbed(call) if _absorbs(call) else call for call in offer.calls]
            return [self._stacked([offer], [call])[0] for call in calls]
        return self._counted([offer], partial(self._computed, offer.calls))

    def together(self, offers: Sequence[Offer]) -> list[Sequence[Outputs] | Exception]:
        """Computes offers of one key: those of equal form in one call. Returns the outputs, or the
        error, of each.
        """
        calls = [offer.calls[0] for offer in offers]
        if len(calls) > 1 and any(map(_absorbs, calls)):
            calls = list(map(_absorbed, calls))
        alike: dict[Hashable, list[int]] = {}
        for number, (offer, call) in enumerate(zip(offers, calls, strict=True)):
            alike.setdefault(_form(offer, call) if len(calls) > 1 else 0, []).append(number)
        found: dict[int, Sequence[Outputs] | Exception] = {}
        for numbers in alike.values():
            some = [offers[one] for one in numbers], [calls[one] for one in numbers]
            found |= zip(numbers, self._tried(*some), strict=True)
        return [found[number] for number in range(len(offers))]

    def _tried(
        self, offers: Sequence[Offer], calls: Sequence[StageCall]
    ) -> list[Sequence[Outputs] | Exception]:
        """Computes offers of equal form. If memory runs out, tries halves; after another error,
        each alone.
        """
        try:
            if len(offers) == 1:
                return [self.alone(offers[0])]
            return [(outputs,) for outputs in self._stacked(offers, calls)]
        except Exception as error:
            if len(offers) == 1:
                return [error]
            size = 1
            if isinstance(error, OutOfMemory):
                size = (len(offers) + 1) // 2
                self._most[offers[0].key] = max(
                    sum(offer.rows for offer in part) for part in _cut(offers, size)
                )
        parts = zip(_cut(offers, size), _cut(calls, size), strict=True)
        return [result for part in parts for result in self._tried(*part)]

    def _stacked(self, offers: Sequence[Offer], calls: Sequence[StageCall]) -> list[Outputs]:
        """Computes a call of each offer, stacked along the rows."""
        rows = [offer.rows for offer in offers]
        wanted = self._wanted(sum(rows))
        if sum(rows) > wanted:  # one request with more rows than a call has
            (offer,), (call,) = offers, calls
            return [self._in_parts(offer, call, wanted)]
        call = self._stacks.stacked(calls, rows, wanted)
        (made,) = self._counted(offers, partial(self._computed, [call]))
        return self._stacks.parts(made, rows, wanted)

    def _wanted(self, rows: int) -> int:
        """Returns the number of rows to compute: filled up with copies of the last one."""
        if self._rows.fixed:
            return self._rows.most
        if self._models.device.type != "cuda":
            return rows
        return next((bucket for bucket in ROW_BUCKETS if bucket >= rows), rows)

    def _in_parts(self, offer: Offer, call: StageCall, most: int) -> Outputs:
        """Computes a call in parts of `most` rows."""
        made = []
        for start in range(0, offer.rows, most):
            size = min(most, offer.rows - start)
            part = call._replace(given=_rows_of(call.given, offer.rows, start, size))
            filled = self._stacks.stacked([part], [size], most)
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
        if first.key and self._rows.most:
            rows = self._wanted(sum(offer.rows for offer in offers))
            self._laps.append((first.key, rows, lap()))
        if len(offers) > 1:
            use.shared += 1
            use.shared_rows += sum(offer.rows for offer in offers)
        new = use.calls - before
        for offer in offers:
            offer.count(new)
        return made

    def _computed(self, calls: Sequence[StageCall]) -> Sequence[Outputs]:
        in_order = attention_order(self._models.device)
        with in_order if calls[0].stage.recorded else nullcontext():
            return self._models.compute.together(calls)


@dataclass(frozen=True, slots=True)
class _Lasting:
    """Holds inputs of several requests, stacked once. `others`: all but the first, in order."""

    others: Sequence[ReferenceType[Tensor]]
    stacked: Tensor

    def is_of(self, others: Sequence[Tensor], rows: int) -> bool:
        return (
            len(self.stacked) == rows
            and len(self.others) == len(others)
            and all(one() is other for one, other in zip(self.others, others, strict=True))
        )


class RowStacks:
    """Stacks rows of several requests, and splits the results. Copies nothing if the rows are the
    parts of one result, and stacks inputs that last for a request only once.
    """

    def __init__(self) -> None:
        # part -> the tensor that it is a view of, and its first row there
        self._wholes: MutableMapping[Tensor, tuple[Tensor, int]] = WeakIdKeyDictionary()
        # first part -> the other parts, the number of rows, and the stacked tensor
        self._lasting: MutableMapping[Tensor, _Lasting] = WeakIdKeyDictionary()

    def stacked(self, calls: Sequence[StageCall], rows: Sequence[int], wanted: int) -> StageCall:
        """Returns one call with the rows of all, and copies of the last row up to `wanted`."""
        first = calls[0]
        given = {}
        for name in first.given:
            source = first.stage.hoists.get(name)
            same_for_all = source is not None and stage_named(source).for_all_rows
            concatenate = partial(
                self._concatenated, rows, wanted, source is not None, same_for_all
            )
            values = [call.given[name] for call in calls]
            given[name] = (
                merge(values, name, concatenate)
                if len(values) > 1
                else mapped(values[0], partial(_of_one, concatenate))
            )
        return first._replace(given=given)

    def parts(self, outputs: Outputs, rows: Sequence[int], wanted: int) -> list[Outputs]:
        """Returns each request's rows of the outputs, without copies."""
        sizes = [*rows, wanted - sum(rows)] if wanted > sum(rows) else list(rows)
        parts = split(outputs, sizes)[: len(rows)]
        if len(sizes) > 1:
            start = 0
            for part, size in zip(parts, rows, strict=True):
                for whole, tensor in zip(tensors_of(outputs), tensors_of(part), strict=True):
                    self._wholes[tensor] = whole, start
                start += size
        return parts

    def _concatenated(
        self,
        rows: Sequence[int],
        wanted: int,
        lasting: bool,
        same_for_all: bool,
        tensors: Sequence[Tensor],
    ) -> Tensor:
        if any(len(tensor) != size for tensor, size in zip(tensors, rows, strict=True)):
            assert same_for_all  # `_form` compared
            return tensors[0][:1]
        if len(tensors) == 1 and wanted == rows[0]:
            return tensors[0]
        if (whole := self._whole(tensors, rows, wanted)) is not None:
            return whole
        if not lasting:
            return _filled(tensors, wanted)
        known = self._lasting.get(tensors[0])
        if known is None or not known.is_of(tensors[1:], wanted):
            others = [ref(tensor) for tensor in tensors[1:]]
            known = self._lasting[tensors[0]] = _Lasting(others, _filled(tensors, wanted))
        return known.stacked

    def _whole(self, tensors: Sequence[Tensor], rows: Sequence[int], wanted: int) -> Tensor | None:
        """Returns the tensor whose rows, in order, are those of the parts."""
        whole, start = self._wholes.get(tensors[0], (None, 0))
        if whole is None or start or len(whole) != wanted:
            return None
        for tensor, size in zip(tensors, rows, strict=True):
            of, at = self._wholes.get(tensor, (None, 0))
            if of is not whole or at != start:
                return None
            start += size
        return whole


def _of_one(concatenate: Callable[[Sequence[Tensor]], Tensor], tensor: Tensor) -> Tensor:
    return concatenate([tensor])


def _filled(tensors: Sequence[Tensor], wanted: int) -> Tensor:
    """Concatenates tensors, and copies of the last row up to `wanted` rows, in their layout."""
    missing = wanted - sum(map(len, tensors))
    return torch.cat([*tensors, *[tensors[-1][-1:]] * missing])


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
    return call._replace(given=call.stage.absorbed(call.given))


def _form(offer: Offer, call: StageCall) -> Hashable:
    """Returns a value that is equal for calls whose rows can be stacked: module, LoRAs, and all
    inputs except tensor values and numbers of rows. Includes layouts, because the bits of a
    convolution depend on them.
    """
    tensors: list[Hashable] = []
    constants = []
    for name, value in call.given.items():
        source = call.stage.hoists.get(name)
        same_for_all = source is not None and stage_named(source).for_all_rows
        for tensor in tensors_of(value):
            if len(tensor) != offer.rows and not same_for_all:
                return id(offer)  # shares with no other
            tensors.append((tensor.shape[1:], tensor.stride()[1:], tensor.dtype, tensor.device))
        constants.append((name, form_of(mapped(value, _without_values))))
    return id(call.module), offer.loras, tuple(tensors), tuple(constants)


def _without_values(tensor: Tensor) -> Tensor:
    return tensor.new_empty(0)


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
