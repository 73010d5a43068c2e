"""Measures kernels of matrix products with all tiles listed for any architecture, against the
library or a copy, and writes the fastest tiles to the tile table.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from katz_graph.bench.gpu.clock import Action
from katz_graph.bench.gpu.layers import Layer, Shape
from katz_graph.bench.gpu.setting import Setting
from katz_graph.core.errors import RunError
from katz_graph.kernels import geglu, lora_patch
from katz_graph.kernels.configurations import Tiles, capability, listed_for, read, tiles
from katz_graph.kernels.dispatch import uses_kernels
from katz_graph.kernels.patches import Delta, Patch

LIBRARY = "library"


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Holds alternative ways to compute the same result."""

    kernel: str
    what: str
    calls: int
    sizes: tuple[int, ...]
    ways: Mapping[str, Action]
    tiles: Mapping[str, Tiles]
    """Tiles of the ways that may enter the tile table. Empty tiles select the library. Without
    working kernels, no other way is listed.
    """
    chosen: str
    """The way that the tile table selects for `sizes`."""
    bytes: int
    """Bytes read and written."""
    operations: float


def trials(setting: Setting, listed: Counter[Layer]) -> Iterator[Trial]:
    """Yields a trial for each size of gated product in a step, and a trial that patches all weights
    of the step's layers with a LoRA.
    """
    for layer, count in listed.items():
        if _is_gated(layer, listed):
            yield _gated_product(setting, layer, count)
    yield _patch(setting, listed)


def _is_gated(layer: Layer, listed: Iterable[Layer]) -> bool:
    """Returns whether the second half of a product's columns gates the first half."""
    if layer.kind != "product":
        return False
    (*rows, _), (columns, _) = layer.shapes
    return columns % 2 == 0 and Layer("gate", ((*rows, columns // 2),)) in listed


def _gated_product(setting: Setting, layer: Layer, count: int) -> Trial:
    x, weight = (_random(setting, shape) for shape in layer.shapes)
    bias, (columns, inner) = _random(setting, weight.shape[:1]), weight.shape
    sizes = x.numel() // inner, columns // 2, inner
    ways: dict[str, Action] = {LIBRARY: lambda: geglu.geglu(F.linear(x, weight, bias))}
    known: dict[str, Tiles] = {LIBRARY: {}}
    if x.element_size() == 2 and uses_kernels(x):
        from katz_graph.kernels.triton.linear_geglu import linear_geglu

        for name, cut in _listed("linear_geglu").items():
            ways[name], known[name] = partial(linear_geglu, x, weight, bias, cut), cut
    moved = x.nbytes + weight.nbytes + x.nbytes // inner * (columns // 2)
    chosen = _chosen(known, tiles("linear_geglu", x.device, *sizes))
    name = "linear_geglu"
    return Trial(name, str(layer), count, sizes, ways, known, chosen, moved, layer.operations)


def _patch(setting: Setting, listed: Counter[Layer]) -> Trial:
    """Returns a trial that patches weights of the sizes of all products and convolutions."""
    shapes = [
        layer.shapes[1]
        for layer, count in listed.items()
        for _ in range(count)
        if layer.kind in ("product", "convolution")
    ]
    patches = [_patched(setting, shape) for shape in shapes]
    weights = sum(patch.weight.nbytes for patch in patches)
    ways: dict[str, Action] = {LIBRARY: partial(lora_patch.reference, patches)}
    known: dict[str, Tiles] = {}
    if uses_kernels(patches[0].weight):
        from katz_graph.kernels.triton.lora_patch import Plan

        there = partial(Tensor.to, device=setting.device)
        for name, cut in _listed("lora_patch").items():
            ways[name] = partial(_all, Plan(patches, partial(_always, cut), there).sent(1.0))
            known[name] = cut
    factors = sum(one.up.nbytes + one.down.nbytes for patch in patches for one in patch.deltas)
    operations = sum(2.0 * setting.rank * patch.weight.numel() for patch in patches)
    chosen = _chosen(known, tiles("lora_patch", patches[0].weight.device, setting.rank))
    what = f"{len(patches)} weights"
    moved = 2 * weights + factors
    name, sizes = "lora_patch", (setting.rank,)
    return Trial(name, what, 1, sizes, ways, known, chosen, moved, operations)


def _patched(setting: Setting, shape: Shape) -> Patch:
    original = _random(setting, shape)
    if original.ndim == 4:
        original = original.contiguous(memory_format=torch.channels_last)
    up, down = (_random(setting, (size, setting.rank)) for size in (shape[0], original[0].numel()))
    delta = Delta(up, down.t().reshape(setting.rank, *shape[1:]), 0.8)
    return Patch(torch.empty_like(original), original, [delta])


def _all(actions: Iterable[Action]) -> None:
    for action in actions:
        action()


def _always(cut: Tiles, rank: int) -> Tiles:
    return cut


def _listed(kernel: str) -> dict[str, Tiles]:
    """Returns all listed tiles of a kernel, by a readable name."""
    return {
        " ".join(map(str, cut.values())): cut
        for by_size in read()[kernel].values()
        for cut in by_size.values()
        if cut
    }


def _chosen(known: Mapping[str, Tiles], cut: Tiles) -> str:
    """Returns the way with the tiles `cut`, or the library's if none has them."""
    return next((name for name, one in known.items() if one == cut), LIBRARY)


def write(file: Path, device: torch.device, found: Mapping[Trial, str]) -> None:
    """Writes the committed tile table with the fastest tiles of a device, for its architecture and
    the tried sizes; all other entries stay. Raises RunError if the file cannot be written.
    """
    table = {
        kernel: {name: dict(by_size) for name, by_size in by_architecture.items()}
        for kernel, by_architecture in read().items()
    }
    for trial, way in found.items():
        if trial.tiles.keys() <= {LIBRARY}:  # nothing was tried
            continue
        number = capability(device)
        nearest = dict(listed_for(trial.kernel, number))
        by_size = table[trial.kernel].setdefault(f"sm{number}", nearest)
        by_size["x".join(map(str, trial.sizes))] = trial.tiles[way]
    try:
        file.write_text(_text(table))
    except OSError as error:
        raise RunError(f"--write {file}: cannot write ({error.strerror})") from None


def _text(table: Mapping[str, Mapping[str, Mapping[str, Tiles]]]) -> str:
    """Returns the table as JSON, one line per size, as committed."""

    def block(depth: int, parts: Iterable[tuple[str, str]]) -> str:
        indent = "  " * depth
        lines = ",\n".join(f"{indent}  {json.dumps(name)}: {text}" for name, text in parts)
        return f"{{\n{lines}\n{indent}}}"

    kernels = (
        (
            kernel,
            block(
                1,
                (
                    (name, block(2, ((size, json.dumps(cut)) for size, cut in by_size.items())))
                    for name, by_size in by_architecture.items()
                ),
            ),
        )
        for kernel, by_architecture in table.items()
    )
    return block(0, kernels) + "\n"


def fastest(trial: Trial, took: Mapping[str, float]) -> str:
    """Returns the fastest measured way that may enter the tile table."""
    return min(trial.tiles.keys() & took.keys(), key=lambda way: took[way], default=LIBRARY)


def _random(setting: Setting, shape: Shape | torch.Size) -> Tensor:
    return torch.randn(shape, device=setting.device, dtype=setting.dtype)
