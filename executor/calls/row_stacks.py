"""Stacks the rows of several requests' calls into one call, and splits the results. Must know only
calls and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from katz_graph.executor.calls.batching import mapped, outline, split, tensors_of
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.models.stage_registry import stage as stage_named
from katz_graph.models.stages import Outputs, Stage

Item = TypeVar("Item")
MAX_REPEATS = 4  # of a text, to the length of others in a call
TEXT_DIMENSIONS = 3  # of tensors with a text's tokens: [B, T, D]


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


def alike(members: Sequence[Member]) -> list[list[Member]]:
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
