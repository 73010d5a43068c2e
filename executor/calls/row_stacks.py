"""Stacks the rows of several requests' calls into one call, and splits the results. Must know only
calls and tensors.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar
from weakref import ReferenceType, ref

import torch
from torch import Tensor

from katz_graph.executor.calls.batching import mapped, outline, tensors_of
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.calls.rows import Form, Rows, SharedOutput, form_of, taken
from katz_graph.models.row_loras import LoraFactors, RowLoras, row_loras
from katz_graph.models.stage_registry import stage as stage_named
from katz_graph.models.stages import ROW_LORAS, Outputs, Stage

Source = TypeVar("Source")
Item = TypeVar("Item")
MAX_REPEATS = 4  # of a text, to the length of others in a call
TEXT_DIMENSIONS = 3  # of tensors with a text's tokens: [B, T, D]


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Input:
    """Describes an input of a call: its tensors, its form without rows, and the lengths of its text
    if the stage allows other lengths in one call.
    """

    value: Any
    tensors: Sequence[Tensor]
    form: Hashable = None
    tokens: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Member:
    """Holds a call of one request that may be stacked with others of equal form. `inputs`: without
    those that are `Rows`; `tokens`: the length of text, if the stage allows other lengths in one
    call.
    """

    offer: Offer
    call: StageCall
    inputs: Mapping[str, Input]
    form: Hashable
    tokens: int = 0

    def input(self, name: str) -> Input:
        """Describes an input; `Rows` only by their tensors."""
        value = self.call.given[name]
        return self.inputs.get(name) or Input(value, tensors_of(taken(value)))


class ByIdentity(Generic[Source, Item]):
    """Maps lists of objects, compared by identity, to values, while the first object exists."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Sequence[ReferenceType[Source]], Item]] = {}

    def get(self, sources: Sequence[Source]) -> Item | None:
        refs, value = self._known.get(id(sources[0]), ((), None))
        if len(refs) != len(sources):
            return None
        same = all(one() is source for one, source in zip(refs, sources, strict=True))
        return value if same else None

    def put(self, sources: Sequence[Source], value: Item) -> None:
        """Replaces the value of another list with the same first object."""
        known, key = self._known, id(sources[0])
        first = ref(sources[0], lambda _: known.pop(key, None))
        known[key] = (first, *map(ref, sources[1:])), value


class RowStacks:
    """Stacks rows of several requests, and splits the results. Copies nothing if the rows are the
    parts of one result, and stacks inputs that last for a request only once.
    """

    def __init__(self) -> None:
        # all members' inputs that last -> the number of rows, and the stacked value
        self._lasting: ByIdentity[Input, tuple[int, Any]] = ByIdentity()
        # the LoRAs of all members with some -> the rows that they apply to, and the stacked LoRAs
        self._loras: ByIdentity[LoraFactors, tuple[Hashable, RowLoras | None]] = ByIdentity()

    def member(self, offer: Offer, call: StageCall, any_tokens: bool) -> Member:
        """Compares calls whose rows can be stacked as equal by `form`: module, LoRAs, and all
        inputs except tensor values and numbers of rows. Includes layouts, because the bits of a
        convolution depend on them. `any_tokens`: without lengths of text, if the stage allows that.
        """
        stage, inputs, tokens = call.stage, {}, frozenset[int]()
        forms: list[Hashable] = [id(call.module), offer.loras, *call.given]
        for name, value in call.given.items():
            repeated = any_tokens and name in stage.repeats
            if isinstance(value, Rows) and not repeated:
                forms.append(value.output.form or id(offer))
                continue
            one = inputs[name] = self._described(offer, stage, name, value, repeated)
            forms.append(one.form)
            tokens |= one.tokens
        if len(tokens) > 1:
            return self.member(offer, call, any_tokens=False)
        return Member(offer, call, inputs, tuple(forms), *tokens)

    def _described(
        self, offer: Offer, stage: Stage, name: str, value: Any, repeated: bool
    ) -> Input:
        """Describes an input; constants, and inputs that last, once for a request."""
        (known,) = offer.forms
        key = name, repeated
        if key in known and known[key].value is value:
            found: Input = known[key]
            return found
        tensors: list[Tensor] = []
        structure = outline(taken(value), tensors)
        form: Hashable = object()  # shares with no other
        if _for_all_rows(stage, name) or all(one.shape[0] == offer.rows for one in tensors):
            form = Form(structure, *[form_of(one, _first(one, repeated)) for one in tensors])
        texts = [one for one in tensors if repeated and one.dim() == TEXT_DIMENSIONS]
        made = Input(value, tensors, form, frozenset(one.shape[1] for one in texts))
        if not tensors or stage.lasting(name):
            known[key] = made
        return made

    def stacked(self, members: Sequence[Member], rows: Sequence[int], wanted: int) -> StageCall:
        """Returns one call with the rows of all, and copies of the last row up to `wanted`."""
        call, tokens = members[0].call, [one.tokens for one in members]
        repeats = [math.lcm(*tokens) // one for one in tokens] if any(tokens) else ()
        given = {}
        for name in call.given:
            output = _output_of([one.call.given[name] for one in members], wanted)
            if output is None:
                inputs = [one.input(name) for one in members]
                given[name] = self._input(call, name, inputs, repeats, rows, wanted)
            else:
                given[name] = output.value
        factors = [one.offer.factors[0] for one in members]
        return self.with_loras(call._replace(given=given), factors, rows, wanted)

    def with_loras(
        self,
        call: StageCall,
        factors: Sequence[LoraFactors | None],
        rows: Sequence[int],
        wanted: int,
    ) -> StageCall:
        """Returns a call with the LoRAs of each request's rows; further rows, up to `wanted`, have
        none.
        """
        some = [one for one in factors if one is not None]
        if not some:
            return call
        placed = wanted, *((size, one is None) for size, one in zip(rows, factors, strict=True))
        known = self._loras.get(some)
        if known is None or known[0] != placed:
            known = placed, row_loras(factors, rows, wanted)
            self._loras.put(some, known)
        return call._replace(given={**call.given, ROW_LORAS: known[1]})

    def _input(
        self,
        call: StageCall,
        name: str,
        inputs: Sequence[Input],
        repeats: Sequence[int],
        rows: Sequence[int],
        wanted: int,
    ) -> Any:
        """Stacks one input of each member."""
        stage, value = call.stage, call.given[name]
        if not inputs[0].tensors or rows[0] == wanted:
            return taken(value)
        lasts = name in stage.hoists
        known = self._lasting.get(inputs) if lasts else None
        if known is None or known[0] != wanted:
            tensors = [one.tensors for one in inputs]
            if name in stage.repeats and repeats:
                tensors = [
                    [_repeated(one, times) for one in some]
                    for some, times in zip(tensors, repeats, strict=True)
                ]
            stacked = [_filled(some, rows, wanted) for some in zip(*tensors, strict=True)]
            rest = iter(stacked)
            known = wanted, mapped(taken(value), lambda _: next(rest))
            if lasts:
                self._lasting.put(inputs, known)
        return known[1]

    def parts(self, outputs: Outputs, rows: Sequence[int], wanted: int) -> list[Outputs]:
        """Returns each request's rows of the outputs, without copies."""
        shared = [SharedOutput(value, wanted) for value in outputs]
        starts = accumulate(rows, initial=0)
        return [
            tuple([Rows(output, start, size) for output in shared])
            for start, size in zip(starts, rows, strict=False)
        ]


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


def _output_of(parts: Sequence[Any], wanted: int) -> SharedOutput | None:
    """Returns the output whose `wanted` rows are, in order, those of the parts."""
    end = 0
    for part in parts:
        if not isinstance(part, Rows) or part.output is not parts[0].output or part.start != end:
            return None
        end += part.size
    output: SharedOutput = parts[0].output
    return output if output.rows == wanted else None


def _share_tokens(members: Sequence[Member]) -> bool:
    tokens = [member.tokens for member in members]
    return math.lcm(*tokens) <= MAX_REPEATS * min(tokens)


def _for_all_rows(stage: Stage, name: str) -> bool:
    source = stage.hoists.get(name)
    return source is not None and stage_named(source).for_all_rows


def _first(tensor: Tensor, repeated: bool) -> int:
    """Returns the first dimension whose size must be equal."""
    return 2 if repeated and tensor.dim() == TEXT_DIMENSIONS else 1


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
