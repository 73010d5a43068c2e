"""The kernel of `lora_patch`: one program per block of rows of one layer, which it finds in a table
of addresses.

Factors go to the device as they lie in host memory: in one copy per file, because the tensors of a
file share its memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from katz_graph.kernels.configurations import Tiles
from katz_graph.kernels.dispatch import INTERPRETED
from katz_graph.kernels.patches import Patch, Send

ALIGNED = 16  # alignment of addresses in bytes, and divisor of row lengths, for wide loads
FACTORS_ALIGNED = 8  # the same for factors and ranks; fewer, because many files pack them so
DENSE = 1 / 2  # minimum share of memory that factors use of a span that is sent in one copy
FORMATS = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
Choose = Callable[[int], Tiles]
"""Returns the tiles for the largest rank of a launch."""
LAYER, DELTA = tl.constexpr(7), tl.constexpr(3)  # numbers per row of the tables


@triton.jit
def _lora_patch(
    programs,
    layers,
    deltas,
    scales,
    strength,
    WEIGHT: tl.constexpr,
    FACTOR: tl.constexpr,
    MULTIPLE: tl.constexpr,
    FACTOR_MULTIPLE: tl.constexpr,
    SINGLE: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RANK: tl.constexpr,
):
    """SINGLE: each layer has one delta, of at most RANK columns of up, which are loaded once."""
    program = tl.program_id(0)
    layer = layers + tl.load(programs + program) * LAYER
    weight = tl.multiple_of(tl.load(layer).to(tl.pointer_type(WEIGHT)), MULTIPLE)
    original = tl.multiple_of(tl.load(layer + 1).to(tl.pointer_type(WEIGHT)), MULTIPLE)
    rows = tl.load(layer + 2)
    columns = tl.multiple_of(tl.load(layer + 3), MULTIPLE)
    first = tl.load(layer + 4).to(tl.int32)
    last = tl.load(layer + 5).to(tl.int32)
    row = (program - tl.load(layer + 6)) * ROWS + tl.arange(0, ROWS)
    there = (row < rows)[:, None]
    inner = tl.arange(0, RANK)
    if SINGLE:
        up, down, rank = _delta(deltas, first, FACTOR, FACTOR_MULTIPLE)
        inside = there & (inner < rank)[None, :]
        left = tl.load(up + row[:, None] * rank + inner[None, :], inside, other=0.0)
        scale = strength * tl.load(scales + first)
        if UPCAST:
            left = left.to(tl.float32)
    for start in range(0, columns.to(tl.int32), COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        across = (column < columns)[None, :]
        place = row[:, None] * columns + column[None, :]
        total = tl.load(original + place, there & across, other=0.0).to(tl.float32)
        if SINGLE:
            within = (inner < rank)[:, None] & across
            right = tl.load(down + inner[:, None] * columns + column[None, :], within, other=0.0)
            if UPCAST:  # Triton's interpreter cannot multiply bfloat16
                right = right.to(tl.float32)
            total += scale * tl.dot(left, right, input_precision=PRECISION)
        else:
            for delta in range(first, last):
                up, down, rank = _delta(deltas, delta, FACTOR, FACTOR_MULTIPLE)
                product = tl.zeros([ROWS, COLUMNS], tl.float32)
                for begin in range(0, rank, RANK):
                    of = begin + inner
                    inside = there & (of < rank)[None, :]
                    left = tl.load(up + row[:, None] * rank + of[None, :], inside, other=0.0)
                    within = (of < rank)[:, None] & across
                    right = tl.load(
                        down + of[:, None] * columns + column[None, :], within, other=0.0
                    )
                    if UPCAST:
                        left, right = left.to(tl.float32), right.to(tl.float32)
                    product = tl.dot(left, right, product, input_precision=PRECISION)
                total += strength * tl.load(scales + delta) * product
        tl.store(weight + place, total.to(WEIGHT), there & across)


@triton.jit
def _delta(deltas, number, FACTOR: tl.constexpr, MULTIPLE: tl.constexpr):
    row = deltas + number * DELTA
    up = tl.multiple_of(tl.load(row).to(tl.pointer_type(FACTOR)), MULTIPLE)
    down = tl.multiple_of(tl.load(row + 1).to(tl.pointer_type(FACTOR)), MULTIPLE)
    return up, down, tl.multiple_of(tl.load(row + 2).to(tl.int32), MULTIPLE)


class Plan:
    """Adds the deltas of patches, which may be repeated with other strengths: keeps the tables of
    layers on the device, and sends the factors each time. Valid while the weights and originals
    exist.
    """

    def __init__(self, patches: Sequence[Patch], choose: Choose, send: Send) -> None:
        alike = defaultdict(list)
        for patch in patches:
            alike[patch.weight.dtype, _is_wide(patch)].append(patch)
        self._device, self._send = patches[0].weight.device, send
        self._factors = _Factors(patch for some in alike.values() for patch in some)
        kind = self._factors.kind
        self._launches = [_Launch(some, wide, kind, choose) for (_, wide), some in alike.items()]

    def __call__(self, strength: float) -> None:
        """Patches the weights with all scales multiplied by `strength`."""
        for launch in self.sent(strength):
            launch()

    def sent(self, strength: float) -> Sequence[Callable[[], None]]:
        """Starts sending the factors. Returns the launches, which may be repeated."""
        addresses, held = self._factors.sent(self._device, self._send)
        counts = [launch.factors for launch in self._launches]
        return [
            partial(launch, launch.sent(some), strength, held)
            for launch, some in zip(self._launches, addresses.split(counts), strict=True)
        ]


def _is_wide(patch: Patch) -> bool:
    """Returns whether the row length and the addresses of a weight and its original are aligned."""
    weight, original = patch.weight, patch.original
    columns = weight.numel() // weight.shape[0]
    return not any(one % ALIGNED for one in (columns, weight.data_ptr(), original.data_ptr()))


class _Launch:
    """Prepares a launch for weights of one dtype."""

    def __init__(
        self, patches: Sequence[Patch], wide: bool, factor: torch.dtype, choose: Choose
    ) -> None:
        weight = patches[0].weight
        self._device, counts = weight.device, [len(patch.deltas) for patch in patches]
        given = [delta for patch in patches for delta in patch.deltas]
        ranks = [delta.up.shape[1] for delta in given]
        self._cut = choose(max(ranks))
        self._ranks = torch.tensor(ranks)
        self.factors = 2 * len(ranks)
        shape = torch.tensor([(one.weight.shape[0], one.weight.numel()) for one in patches])
        rows, columns = shape[:, 0], shape[:, 1] // shape[:, 0]
        blocks = (rows + self._cut["ROWS"] - 1) // self._cut["ROWS"]
        last, end = torch.tensor(counts).cumsum(0), blocks.cumsum(0)
        addresses = [(one.weight.data_ptr(), one.original.data_ptr()) for one in patches]
        layers = (rows, columns, last - torch.tensor(counts), last, end - blocks)
        table = torch.cat([torch.tensor(addresses), torch.stack(layers, 1)], 1)
        programs = torch.arange(len(patches), dtype=torch.int32).repeat_interleave(blocks)
        scales = torch.tensor([delta.scale for delta in given], dtype=torch.float32)
        self._tables = [_there(one, self._device) for one in (programs, table, scales)]
        self._grid = (len(programs),)
        self._constants = {
            "WEIGHT": FORMATS[weight.dtype],
            "FACTOR": FORMATS[factor],
            "MULTIPLE": ALIGNED if wide else 1,
            "SINGLE": set(counts) == {1} and max(ranks) <= self._cut["RANK"],
            "PRECISION": precision(weight.dtype),
            "UPCAST": INTERPRETED,
            **self._cut,
        }

    def sent(self, addresses: Tensor) -> tuple[Tensor, int]:
        """Sends the table of deltas, by the addresses of their factors. Returns it, and the divisor
        of its numbers.
        """
        numbers = torch.stack([addresses[::2], addresses[1::2], self._ranks], 1)
        multiple = 1 if bool((numbers % FACTORS_ALIGNED).any()) else FACTORS_ALIGNED
        return _there(numbers, self._device), multiple

    def __call__(self, sent: tuple[Tensor, int], strength: float, held: Sequence[Tensor]) -> None:
        """Launches the kernel. `held`: memory of the factors, which a repeated launch reads."""
        programs, layers, scales = self._tables
        deltas, multiple = sent
        _lora_patch[self._grid](
            programs,
            layers,
            deltas,
            scales,
            strength,
            FACTOR_MULTIPLE=multiple,
            **self._constants,
        )


def precision(weight: torch.dtype) -> str:
    """Returns how to multiply float32 factors: exactly for float32 weights, otherwise as three TF32
    products, with an error far below that of half precision.
    """
    return "ieee" if weight == torch.float32 else "tf32x3"


class _Factors:
    """Sends up and down of each delta, in this order. A device reads them in one dtype, `kind`:
    their common one, or float32 if they differ or if kernels cannot multiply it. Down of a
    channels-last weight is permuted like its weight.
    """

    def __init__(self, patches: Iterable[Patch]) -> None:
        self._given: list[tuple[Tensor, tuple[int, ...]]] = []  # factors with their axes, if moved
        for patch in patches:
            shape = () if patch.weight.is_contiguous() else patch.weight.shape[1:]
            for delta in patch.deltas:
                self._given.append((delta.up, ()))
                self._given.append((delta.down, (len(delta.down), *shape) if shape else ()))
        kinds = {factor.dtype for factor, _ in self._given}
        common = next(iter(kinds)) if len(kinds) == 1 else torch.float32
        self.kind = common if common in FORMATS else torch.float32
        self._pieces, places = _pieces([factor for factor, _ in self._given])
        self._places = torch.tensor(places)
        self._made = [  # factors that the device permutes or converts
            number
            for number, (factor, axes) in enumerate(self._given)
            if axes or factor.dtype != self.kind
        ]

    def sent(self, device: torch.device, send: Send) -> tuple[Tensor, list[Tensor]]:
        """Starts copies of all factors. Returns their addresses, and the memory that holds them."""
        held = [piece if piece.device == device else send(piece) for piece in self._pieces]
        bases = torch.tensor([memory.data_ptr() for memory in held])
        addresses = bases[self._places[:, 0]] + self._places[:, 1]
        for number in self._made:
            factor, axes = self._given[number]
            piece, offset = self._places[number].tolist()
            made = held[piece][offset : offset + factor.nbytes].view(factor.dtype)
            if axes:
                made = made.view(axes).permute(0, 2, 3, 1)
            held.append(made.to(self.kind).contiguous())
            addresses[number] = held[-1].data_ptr()
        return addresses, held


def _pieces(factors: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[int, int]]]:
    """Returns the memory to send as tensors of bytes, and each factor's piece and offset in bytes.
    Factors that share memory are sent together if they use most of it.
    """
    shared: defaultdict[int, list[int]] = defaultdict(list)
    whole = [factor.contiguous() for factor in factors]
    for number, factor in enumerate(whole):
        shared[factor.untyped_storage().data_ptr()].append(number)
    pieces: list[Tensor] = []
    places = [(0, 0)] * len(whole)
    for base, numbers in shared.items():
        begins = [whole[number].data_ptr() - base for number in numbers]
        sizes = [whole[number].nbytes for number in numbers]
        begin = min(begins) // ALIGNED * ALIGNED  # offsets remain aligned
        end = max(map(sum, zip(begins, sizes, strict=True)))
        if sum(sizes) >= DENSE * (end - begin):
            for number, offset in zip(numbers, begins, strict=True):
                places[number] = len(pieces), offset - begin
            pieces.append(_bytes(whole[numbers[0]], begin, end - begin))
            continue
        for number, offset, size in zip(numbers, begins, sizes, strict=True):
            places[number] = len(pieces), 0
            pieces.append(_bytes(whole[number], offset, size))
    return pieces, places


def _bytes(tensor: Tensor, begin: int, size: int) -> Tensor:
    """Returns bytes of a tensor's storage, as a view."""
    view: Tensor = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return view.set_(tensor.untyped_storage(), begin, (size,), (1,))


def _there(table: Tensor, device: torch.device) -> Tensor:
    """Sends a table to the device without waiting for its current work."""
    return (table.pin_memory() if device.type == "cuda" else table).to(device, non_blocking=True)
