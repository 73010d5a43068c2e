"""Executes the calls that requests offer: each alone, or the rows of several requests in one call.

A row of a shared call differs from its own call only by rounding; with a fixed number of rows in
each call it has the same bits in any company.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from katz_graph.core.errors import OutOfMemory
from katz_graph.core.shared_rows import ALONE, SharedRows
from katz_graph.executor.calls.batching import mapped, merge, outline, split, tensors_of
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.worker.models import DeviceModels
from katz_graph.executor.worker.stream import Lap
from katz_graph.ir.device import ROW_BUCKETS
from katz_graph.kernels.attention import attention_order
from katz_graph.models.stage_registry import stage as stage_named
from katz_graph.models.stages import Outputs, Stage
from katz_graph.serving.seconds import CallSeconds

Item = TypeVar("Item")
MAX_REPEATS = 4  # of a text, to the length of others in a call
TEXT_DIMENSIONS = 3  # of tensors with a text's tokens: [B, T, D]


EVALUATIONS = 20  # whose median pace corrects planned seconds


class StageCalls:
    """Executes offers on a device. A stage has no side effects, so a call is retried after memory
    is freed, and after an error of a shared call each request is tried alone.
    """

    def __init__(self, models: DeviceModels, rows: SharedRows = ALONE) -> None:
        self._models, self._rows = models, rows
        self._stacks = RowStacks()
        self._most: dict[str, int] = {}  # share key -> rows that fit into memory
        self._seconds = CallSeconds()  # by share key
        # measured / planned seconds of the last evaluations that one request ran alone
        self._paces: deque[float] = deque(maxlen=EVALUATIONS)
        self._laps: deque[tuple[str, int, Lap]] = deque()  # of calls that may not be complete

    def most_rows(self, key: str) -> int:
        """Returns the most rows of a shared call with this key."""
        return self._most.get(key, self._rows.most)

    @property
    def pace(self) -> float:
        """Returns the median of measured by planned seconds of the last evaluations."""
        return median(self._paces) if self._paces else 1.0

    def ran(self, planned: float, seconds: float) -> None:
        """Adds an evaluation that one request ran alone."""
        if planned > 0:
            self._paces.append(seconds / planned)

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
            rows = offer.rows, offer.other_rows
            offers = [replace(offer, rows=size) for size in rows[: len(calls)]]
            return [self._stacked([one])[0] for one in map(self._member, offers, calls)]
        return self._counted([offer], partial(self._computed, offer.calls))

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
        for group in _alike(list(map(self._member, offers, calls))):
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
            part = call._replace(given=_rows_of(call.given, offer.rows, start, size))
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
class Member:
    """Holds a call of one request that may be stacked with others of equal form. `tensors`: by
    input; `tokens`: the length of text, if the stage allows other lengths in one call.
    """

    offer: Offer
    call: StageCall
    tensors: Mapping[str, Sequence[Tensor]]
    form: Hashable
    tokens: int = 0


class ByTensors(Generic[Item]):
    """Maps lists of tensors, compared by identity, to values, while the first tensor exists."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[ReferenceType[Tensor]], Item]] = {}

    def get(self, tensors: Sequence[Tensor]) -> Item | None:
        refs, value = self._known.get(id(tensors[0]), ((), None))
        if len(refs) != len(tensors):
            return None
        same = all(one() is tensor for one, tensor in zip(refs, tensors, strict=True))
        return value if same else None

    def put(self, tensors: Sequence[Tensor], value: Item) -> None:
        """Replaces the value of another list with the same first tensor."""
        known, key = self._known, id(tensors[0])
        first = ref(tensors[0], lambda _: known.pop(key, None))
        known[key] = (first, *map(ref, tensors[1:])), value


class RowStacks:
    """Stacks rows of several requests, and splits the results. Copies nothing if the rows are the
    parts of one result, and stacks inputs that last for a request only once.
    """

    def __init__(self) -> None:
        # tensors of a part -> the value that it is a part of, and its first row there
        self._wholes: ByTensors[tuple[Any, int]] = ByTensors()
        # tensors of all members' inputs that last -> the number of rows, and the stacked value
        self._lasting: ByTensors[tuple[int, Any]] = ByTensors()
        # tensors of an input that lasts -> their form and number of rows
        self._forms: ByTensors[tuple[Hashable, Collection[int]]] = ByTensors()

    def member(self, offer: Offer, call: StageCall, any_tokens: bool) -> Member:
        """Compares calls whose rows can be stacked as equal by `form`: module, LoRAs, and all
        inputs except tensor values and numbers of rows. Includes layouts, because the bits of a
        convolution depend on them. `any_tokens`: without lengths of text, if the stage allows that.
        """
        stage, inputs, forms, tokens = call.stage, {}, [], set()
        for name, value in call.given.items():
            tensors = inputs[name] = list[Tensor]()
            structure = outline(value, tensors)
            repeated = any_tokens and name in stage.repeats
            if repeated:
                tokens |= {one.shape[1] for one in tensors if one.dim() == TEXT_DIMENSIONS}
            form, rows = self._form(tensors, name in stage.hoists, repeated)
            if not _for_all_rows(stage, name) and set(rows) - {offer.rows}:
                form = id(offer)  # shares with no other
            forms.append((name, structure, form))
        if len(tokens) > 1:
            return self.member(offer, call, any_tokens=False)
        form = id(call.module), offer.loras, tuple(forms)
        return Member(offer, call, inputs, form, *tokens)

    def _form(
        self, tensors: Sequence[Tensor], lasting: bool, repeated: bool
    ) -> tuple[Hashable, Collection[int]]:
        """Returns the form of tensors without rows, and their numbers of rows."""
        known = self._forms.get(tensors) if lasting and tensors else None
        if known is None:
            known = (
                tuple([_form_of(one, repeated) for one in tensors]),
                {one.shape[0] for one in tensors},
            )
            if lasting and tensors:
                self._forms.put(tensors, known)
        return known

    def stacked(self, members: Sequence[Member], rows: Sequence[int], wanted: int) -> StageCall:
        """Returns one call with the rows of all, and copies of the last row up to `wanted`."""
        tokens = [one.tokens for one in members]
        return members[0].call._replace(
            given={
                name: self._input(
                    members[0].call,
                    name,
                    [one.tensors[name] for one in members],
                    [math.lcm(*tokens) // one for one in tokens] if any(tokens) else (),
                    rows,
                    wanted,
                )
                for name in members[0].call.given
            }
        )

    def _input(
        self,
        call: StageCall,
        name: str,
        tensors: Sequence[Sequence[Tensor]],
        repeats: Sequence[int],
        rows: Sequence[int],
        wanted: int,
    ) -> Any:
        """Stacks one input. `tensors`: of each member."""
        stage, value = call.stage, call.given[name]
        if not tensors[0] or rows[0] == wanted:
            return value
        if (whole := self._whole(tensors, rows, wanted)) is not None:
            return whole
        lasts = name in stage.hoists
        sources = [one for some in tensors for one in some]
        known = self._lasting.get(sources) if lasts else None
        if known is None or known[0] != wanted:
            if name in stage.repeats and repeats:
                tensors = [
                    [_repeated(one, times) for one in some]
                    for some, times in zip(tensors, repeats, strict=True)
                ]
            stacked = [_filled(some, rows, wanted) for some in zip(*tensors, strict=True)]
            rest = iter(stacked)
            known = wanted, mapped(value, lambda _: next(rest))
            if lasts:
                self._lasting.put(sources, known)
        return known[1]

    def parts(self, outputs: Outputs, rows: Sequence[int], wanted: int) -> list[Outputs]:
        """Returns each request's rows of the outputs, without copies."""
        sizes = [*rows, wanted - sum(rows)] if wanted > sum(rows) else list(rows)
        parts = split(outputs, sizes)[: len(rows)]
        if len(sizes) > 1:
            start = 0
            for part, size in zip(parts, rows, strict=True):
                for whole, value in zip(outputs, part, strict=True):
                    if tensors := tensors_of(value):
                        self._wholes.put(tensors, (whole, start))
                start += size
        return parts

    def _whole(
        self, tensors: Sequence[Sequence[Tensor]], rows: Sequence[int], wanted: int
    ) -> Any | None:
        """Returns the value whose rows, in order, are those of the parts."""
        whole, end = None, 0
        for some, size in zip(tensors, rows, strict=True):
            of, start = self._wholes.get(some) or (None, 0)
            if of is None or start != end or (whole is not None and of is not whole):
                return None
            whole, end = of, start + size
        return whole if all(len(one) == wanted for one in tensors_of(whole)) else None


def _alike(members: Sequence[Member]) -> list[list[Member]]:
    """Groups members that can be stacked: of equal form, with texts that are repeated to a common
    length.
    """
    groups: dict[Hashable, list[list[Member]]] = {}
    for member in members:
        some = groups.setdefault(member.form, [])
        fitting = (group for group in some if _share_tokens([*group, member]))
        if (group := next(fitting, None)) is None:
            some.append(group := [])
        group.append(member)
    return [group for some in groups.values() for group in some]


def _share_tokens(members: Sequence[Member]) -> bool:
    tokens = [member.tokens for member in members]
    return math.lcm(*tokens) <= MAX_REPEATS * min(tokens)


def _for_all_rows(stage: Stage, name: str) -> bool:
    source = stage.hoists.get(name)
    return source is not None and stage_named(source).for_all_rows


def _form_of(tensor: Tensor, repeated: bool) -> Hashable:
    shape = tensor.shape[2 if repeated and tensor.dim() == TEXT_DIMENSIONS else 1 :]
    return shape, tensor.stride()[1:], tensor.dtype, tensor.device


def _repeated(tensor: Tensor, times: int) -> Tensor:
    """Repeats a text [B, T, D] along its tokens."""
    many = times > 1 and tensor.dim() == TEXT_DIMENSIONS
    return tensor.repeat(1, times, 1) if many else tensor


def _filled(tensors: Sequence[Tensor], rows: Sequence[int], wanted: int) -> Tensor:
    """Concatenates tensors, and copies of the last row up to `wanted` rows, in their layout.
    Returns one row of tensors with other numbers of rows, whose first row counts for all.
    """
    if [len(tensor) for tensor in tensors] != [*rows]:
        return tensors[0][:1]
    missing = wanted - sum(rows)
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


def _cut(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
