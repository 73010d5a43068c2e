"""Stores the LoRAs of a call's rows, which may be those of several requests, in one tensor. So
they are an input of the call like others, which recordings read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.row_products import FactorBank, Factors, RowFactors

ALIGNED = 64  # bytes: tensors of one storage begin at multiples
MIN_RANK = 16  # of a kernel's product


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LoraFactors:
    """Holds the factors of a request's LoRAs by layer: down [r, in] or [r, in, kh, kw], and up
    [out, r], which includes the strengths. Equal requests share one object.
    """

    layers: Mapping[str, tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class _Layer:
    """Places the factors of one layer in a storage. `sets`: for each set of LoRAs its rank, and the
    offsets of `down` and `up` in values.
    """

    name: str
    inner: tuple[int, ...]  # shape of `down` without rank
    outer: int
    sets: tuple[tuple[int, int, int], ...]

    def factors(self, data: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """Returns the factors of a set of LoRAs."""
        rank, down, up = self.sets[number]
        return _view(data, down, rank, *self.inner), _view(data, up, self.outer, rank)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Places all factors in a storage. `spans`: number of rows, and set of LoRAs or -1, of adjacent
    rows; empty if kernels read the set of each row from device memory.
    """

    layers: tuple[_Layer, ...]
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class RowLoras:
    """Holds the LoRAs of a call's rows. `data`: all factors; `members` [B] int32: each row's set of
    LoRAs.
    """

    layout: _Layout
    data: Tensor
    members: Tensor

    @cached_property
    def factors(self) -> Mapping[str, Factors]:
        """Returns each layer's factors by row."""
        return {layer.name: self._factors(layer) for layer in self.layout.layers}

    def _factors(self, layer: _Layer) -> Factors:
        if not self.layout.spans:
            (rank, down, up), count = layer.sets[0], len(layer.sets)
            return FactorBank(
                _view(self.data, down, count, rank, *layer.inner),
                _view(self.data, up, count, layer.outer, rank),
                self.members,
            )
        spans, row = [], 0
        for rows, member in self.layout.spans:
            if member >= 0 and layer.sets[member][0]:
                reach = slice(None) if self.rows is None else slice(row, row + rows)
                spans.append(RowFactors(reach, *layer.factors(self.data, member)))
            row += rows
        return spans

    @cached_property
    def rows(self) -> int | None:
        """Returns the number of rows; None if all have the same LoRAs."""
        return None if len(self.layout.spans) == 1 else len(self.members)

    @cached_property
    def prepared(self) -> dict[int, Sequence[Any]]:
        """Returns what `lora_layers` has prepared for modules, by their id()."""
        return {}


def row_loras(
    requests: Sequence[LoraFactors | None], rows: Sequence[int], wanted: int
) -> RowLoras | None:
    """Stacks the LoRAs of requests with these numbers of rows; further rows, up to `wanted`, have
    none. Returns None if no request has LoRAs.
    """
    found = {id(one): one for one in requests if one is not None}
    if not found:
        return None
    sets = list(found.values())
    first, _ = next(iter(sets[0].layers.values()))
    alike = len(sets) == 1 and None not in requests and sum(rows) == wanted
    by_kernels = not alike and uses_kernels(first)
    if by_kernels:  # few forms, each a recording: the first set is empty
        sets = [LoraFactors({}), *sets]
        sets += [sets[0]] * (_bucket(len(sets), 2) - len(sets))
    number = {id(one): at for at, one in enumerate(sets)}
    none = 0 if by_kernels else -1
    members = [none if one is None else number[id(one)] for one in requests]
    counts = list(rows)
    if wanted > sum(rows):
        counts.append(wanted - sum(rows))
        members.append(none)
    layers, end = _placed(sets, by_kernels, first.element_size())
    data = first.new_zeros(end)
    layout = _Layout(layers, () if by_kernels else tuple(zip(counts, members, strict=True)))
    by_row = torch.tensor(members, dtype=torch.int32).repeat_interleave(torch.tensor(counts))
    for layer in layers:
        for at, one in enumerate(sets):
            if layer.name in one.layers:
                given, (down, up) = one.layers[layer.name], layer.factors(data, at)
                rank = len(given[0])
                down[:rank], up[:, :rank] = given
    return RowLoras(layout, data, by_row.to(first.device))


def _placed(
    sets: Sequence[LoraFactors], by_kernels: bool, value_bytes: int
) -> tuple[tuple[_Layer, ...], int]:
    """Returns the places of the layers that the sets change, in the order of their names, and the
    number of values. Factors begin at multiples of ALIGNED, because bits may depend on that; those
    of all sets lie side by side for kernels.
    """
    step, end, layers = ALIGNED // value_bytes, 0, []

    def place(values: int) -> int:
        nonlocal end
        start = end
        end += -(-values // step) * step
        return start

    for name in sorted({name for one in sets for name in one.layers}):
        found = [one.layers.get(name) for one in sets]
        down, up = next(one for one in found if one is not None)
        ranks = [0 if one is None else len(one[0]) for one in found]
        inner, outer = tuple(down.shape[1:]), len(up)
        if by_kernels:
            ranks = [_bucket(max(ranks), MIN_RANK)] * len(ranks)
        places = []
        for width in (math.prod(inner), outer):
            if by_kernels:
                start = place(width * sum(ranks))
                places.append([start + width * sum(ranks[:at]) for at in range(len(ranks))])
            else:
                places.append([place(width * rank) for rank in ranks])
        layers.append(_Layer(name, inner, outer, tuple(zip(ranks, *places, strict=True))))
    return tuple(layers), end


def _view(data: Tensor, start: int, *shape: int) -> Tensor:
    return data[start : start + math.prod(shape)].view(shape)


def _bucket(count: int, least: int) -> int:
    """Returns the next power of two, at least `least`."""
    return max(least, 1 << (count - 1).bit_length())
