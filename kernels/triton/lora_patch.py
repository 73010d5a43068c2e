"""The kernel of `lora_patch`: one program per block of rows of one layer, which it finds in a table
of addresses.

Factors go to the device in one transfer per dtype, ordered by weight, with ranks zero-padded to
whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import Tiles
from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.kernels.patches import Patch

ALIGNED = 16  # alignment of addresses in bytes, and divisor of row lengths, for wide loads
SEARCHED = 1024  # layers that a program searches at a time
FORMATS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
Choose = Callable[[int], Tiles]
"""Returns the tiles for the largest rank of a launch."""
LAYER, DELTA = tl.constexpr(7), tl.constexpr(3)  # numbers per row of the tables


@triton.jit
def _lora_patch(
    layers,
    deltas,
    scales,
    count,
    WEIGHT: tl.constexpr,
    FACTOR: tl.constexpr,
    MULTIPLE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    SEARCHED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
):
    program = tl.program_id(0)
    number = 0
    for start in range(0, count, SEARCHED):
        index = start + tl.arange(0, SEARCHED)
        end = tl.load(layers + index * LAYER + 6, index < count, other=program + 1)
        number += tl.sum((end <= program).to(tl.int32), 0)
    layer = layers + number * LAYER
    weight = tl.multiple_of(tl.load(layer).to(tl.pointer_type(WEIGHT)), MULTIPLE)
    original = tl.multiple_of(tl.load(layer + 1).to(tl.pointer_type(WEIGHT)), MULTIPLE)
    rows = tl.load(layer + 2)
    columns = tl.multiple_of(tl.load(layer + 3), MULTIPLE)
    first = tl.load(layer + 4).to(tl.int32)
    last = tl.load(layer + 5).to(tl.int32)
    # a layer's programs are counted back from its end
    row = rows - (tl.load(layer + 6) - program) * ROWS + tl.arange(0, ROWS)
    there = (row >= 0)[:, None]
    for start in range(0, columns.to(tl.int32), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        across = (column < columns)[None, :]
        place = row[:, None] * columns + column[None, :]
        total = tl.load(original + place, there & across, other=0.0).to(tl.float32)
        for delta in range(first, last):
            up = tl.multiple_of(tl.load(deltas + delta * DELTA).to(tl.pointer_type(FACTOR)), 16)
            down = tl.load(deltas + delta * DELTA + 1).to(tl.pointer_type(FACTOR))
            down = tl.multiple_of(down, MULTIPLE)
            rank = tl.multiple_of(tl.load(deltas + delta * DELTA + 2).to(tl.int32), RANK)
            product = tl.zeros([ROWS, COLUMNS], tl.float32)
            for inner in range(0, rank, RANK):
                of = inner + tl.arange(0, RANK)
                left = tl.load(up + row[:, None] * rank + of[None, :], there, other=0.0)
                right = tl.load(down + of[:, None] * columns + column[None, :], across, other=0.0)
                if UPCAST:  # Triton's interpreter cannot multiply bfloat16
                    left, right = left.to(tl.float32), right.to(tl.float32)
                product = tl.dot(left, right, product, input_precision=PRECISION)
            total += tl.load(scales + delta) * product
        tl.store(weight + place, total.to(WEIGHT), there & across)


@dataclass(frozen=True, slots=True, eq=False)
class _Factor:
    """Holds up or down of a LoRA (down with its weight's axes), and the shape when padded."""

    values: Tensor
    shape: tuple[int, ...]
    channels_last: bool = False

    @property
    def size(self) -> int:
        """Returns the padded number of values; the padding aligns the next factor."""
        return _filled(torch.Size(self.shape).numel(), ALIGNED)

    def within(self, memory: Tensor) -> Tensor:
        """Returns the view of `memory` into which the values are copied."""
        whole = memory[: torch.Size(self.shape).numel()].view(self.shape)
        if self.channels_last:
            whole = whole.permute(0, 3, 1, 2)
        return whole[tuple(map(slice, self.values.shape))]


def lora_patch(patches: Sequence[Patch], choose: Choose) -> None:
    for launch in launches(patches, choose):
        launch()


def launches(patches: Sequence[Patch], choose: Choose) -> Iterator[Callable[[], None]]:
    """Yields a launch per weight dtype, after starting the copies of its inputs to the device. A
    launch may be repeated as long as the weights and originals exist.
    """

    def kind(patch: Patch) -> tuple[str, int]:
        return str(patch.weight.dtype), _multiple(patch)

    for (_, multiple), alike in groupby(sorted(patches, key=kind), key=kind):
        yield _launch(list(alike), multiple, choose)


def _launch(patches: Sequence[Patch], multiple: int, choose: Choose) -> Callable[[], None]:
    weight, given = patches[0].weight, [delta for patch in patches for delta in patch.deltas]
    cut = choose(max(delta.up.shape[1] for delta in given))
    factors = [one for patch in patches for one in _factors(patch, cut["RANK"])]
    addresses, sent = _sent(factors, weight.device)
    counts = list(accumulate((len(patch.deltas) for patch in patches), initial=0))
    shapes = [(len(patch.weight), patch.weight[0].numel()) for patch in patches]
    ends = list(accumulate(triton.cdiv(rows, cut["ROWS"]) for rows, _ in shapes))
    layers = [
        (patch.weight.data_ptr(), patch.original.data_ptr(), *shape, first, last, end)
        for patch, shape, first, last, end in zip(
            patches, shapes, counts[:-1], counts[1:], ends, strict=True
        )
    ]
    ranks = [up.shape[1] for up in factors[::2]]
    deltas = list(zip(addresses[::2], addresses[1::2], ranks, strict=True))
    tables = (
        _table(layers, torch.int64, weight.device),
        _table(deltas, torch.int64, weight.device),
        _table([delta.scale for delta in given], torch.float32, weight.device),
    )

    def launch() -> None:
        _lora_patch[(ends[-1],)](
            *tables,
            len(layers),
            WEIGHT=FORMATS[weight.dtype],
            FACTOR=FORMATS[sent[0].dtype],
            MULTIPLE=multiple,
            PRECISION=precision(weight.dtype),
            UPCAST=INTERPRETED,
            SEARCHED=SEARCHED,
            **cut,
        )

    return launch


def precision(weight: torch.dtype) -> str:
    """Returns how to multiply float32 factors: exactly for float32 weights, otherwise as three TF32
    products, with an error far below that of half precision.
    """
    return "ieee" if weight == torch.float32 else "tf32x3"


def _multiple(patch: Patch) -> int:
    """Returns a common divisor of the row length and the addresses of a weight and its original."""
    numbers = patch.weight.data_ptr(), patch.original.data_ptr(), patch.weight[0].numel()
    return ALIGNED if all(number % ALIGNED == 0 for number in numbers) else 1


def _factors(patch: Patch, tile: int) -> Iterator[_Factor]:
    """Yields up and down of each LoRA of a layer; pads ranks to multiples of `tile`."""
    shape = patch.weight.shape[1:]
    channels_last = not patch.weight.is_contiguous()
    stored = (*shape[1:], shape[0]) if channels_last else shape
    for delta in patch.deltas:
        outputs, rank = delta.up.shape
        filled = _filled(rank, tile)
        yield _Factor(delta.up, (outputs, filled))
        yield _Factor(delta.down.reshape(rank, *shape), (filled, *stored), channels_last)


def _filled(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _sent(factors: Sequence[_Factor], device: torch.device) -> tuple[list[int], list[Tensor]]:
    """Sends factors in their own dtypes, and converts them to one dtype on the device: float32 if
    they differ, or if kernels cannot multiply their dtype. Returns their addresses, and the tensors
    that hold them.
    """
    kinds = {factor.values.dtype for factor in factors}
    kind = next(iter(kinds)) if len(kinds) == 1 and kinds <= FORMATS.keys() else torch.float32
    addresses, held = dict.fromkeys(factors, 0), []
    for given in kinds:
        alike = [factor for factor in factors if factor.values.dtype == given]
        sizes = [factor.size for factor in alike]
        memory = torch.zeros(sum(sizes), dtype=given, device=device)
        parts = [one.within(part) for one, part in zip(alike, memory.split(sizes), strict=True)]
        torch._foreach_copy_(parts, [one.values for one in alike], non_blocking=True)
        held.append(memory.to(kind))
        for factor, place in zip(alike, accumulate(sizes, initial=0), strict=False):
            addresses[factor] = held[-1].data_ptr() + place * kind.itemsize
    return [addresses[factor] for factor in factors], held


def _table(numbers: Sequence[object], kind: torch.dtype, device: torch.device) -> Tensor:
    """Sends numbers to the device without waiting for its current work."""
    table = torch.tensor(numbers, dtype=kind)
    return (table.pin_memory() if device.type == "cuda" else table).to(device, non_blocking=True)
