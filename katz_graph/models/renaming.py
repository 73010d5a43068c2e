"""Maps the original code's names to a module's names. Splits fused rows and swaps halves if needed.
One table serves files and LoRAs. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

NUMBER = "{}"  # placeholder for a block's number in a table's names
PARAMETERS = {"scale": "weight"}  # names of norm parameters in the original code


@dataclass(frozen=True, slots=True)
class Rows:
    """Names a layer or parameter of the module, and its rows in the original layer: of `of` equal
    parts, `start` to `stop` (exclusive). `swapped`: the original has the two halves in reverse
    order.
    """

    layer: str
    start: int = 0
    stop: int = 1
    of: int = 1
    swapped: bool = False

    @property
    def whole(self) -> bool:
        """Returns whether the layer equals the original layer, row by row."""
        return self.stop - self.start == self.of and not self.swapped

    def cut(self, tensor: Any) -> Any:
        """Returns this layer's rows of the original layer's tensor."""
        unit = len(tensor) // self.of
        part = tensor if self.of == 1 else tensor[self.start * unit : self.stop * unit]
        return part.roll(len(part) // 2, 0) if self.swapped else part


@dataclass(frozen=True)
class Renaming:
    """Holds the table of a network."""

    # original layer -> the module's layers with its rows, in order
    layers: Mapping[str, tuple[str, ...]]
    # original layer -> the relative sizes of its module layers, if they differ
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    swapped: frozenset[str] = frozenset()  # original layers with two halves in reverse order
    swapped_in_last: frozenset[str] = frozenset()  # like `swapped`, in the last block only
    # original name -> the module's name, for tensors other than a layer's weight or bias; `{}` is
    # a block's number
    tensors: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(layer), layer) for layer in self.layers]

    @cached_property
    def _tensor_patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(name), own) for name, own in self.tensors.items()]

    def rows(self, layer: str, blocks: int) -> tuple[Rows, ...]:
        """Returns the module's layers for an original layer; none if unknown. `blocks`: the number
        of blocks in the layer's chain.
        """
        for pattern, known in self._patterns:
            if match := pattern.fullmatch(layer):
                number = next(iter(match.groups()), "")
                return self._rows(known, number, number == str(blocks - 1))
        return ()

    def originals(self, parameters: Collection[str]) -> dict[str, tuple[Rows, ...]]:
        """Returns original name -> rows in the module's parameters. If an original layer is split,
        its pieces also have names with a number (`LAYER.0.weight`).
        """
        present = frozenset(parameters)
        numbers = _numbers(present)
        found: dict[str, tuple[Rows, ...]] = {
            name.replace(NUMBER, number): (Rows(own.replace(NUMBER, number)),)
            for name, own in self.tensors.items()
            for number in (numbers if NUMBER in name else [""])
            if own.replace(NUMBER, number) in present
        }
        for layer, names in self._layers(present):
            for parameter in ("weight", "bias"):
                rows = tuple(replace(one, layer=f"{one.layer}.{parameter}") for one in names)
                if not all(one.layer in present for one in rows):
                    continue
                others = (old for old, new in PARAMETERS.items() if new == parameter)
                for original in (parameter, *others):
                    found[f"{layer}.{original}"] = rows
                for place, one in enumerate(rows if len(rows) > 1 else ()):
                    found[f"{layer}.{place}.{parameter}"] = (Rows(one.layer),)
        return found

    def _layers(self, parameters: Collection[str]) -> Iterator[tuple[str, tuple[Rows, ...]]]:
        """Yields each original layer that these module parameters cover, and its `Rows`."""
        paths = {name.rpartition(".")[0] for name in parameters}
        numbers = _numbers(paths)
        for known, names in self.layers.items():
            present = [
                number
                for number in (numbers if NUMBER in known else [""])
                if all(name.replace(NUMBER, number) in paths for name in names)
            ]
            for number in present:
                last = number == present[-1]
                yield known.replace(NUMBER, number), self._rows(known, number, last)

    def _rows(self, known: str, number: str, last: bool) -> tuple[Rows, ...]:
        """Returns the module's layers for a layer of the table in one block."""
        swapped = known in self.swapped or (last and known in self.swapped_in_last)
        names = [name.replace(NUMBER, number) for name in self.layers[known]]
        shares = self.shares.get(known, (1,) * len(names))
        ends = [sum(shares[: place + 1]) for place in range(len(shares))]
        return tuple(
            Rows(name, end - share, end, sum(shares), swapped)
            for name, share, end in zip(names, shares, ends, strict=True)
        )

    def converted(self, tensors: Mapping[str, Any], blocks: int) -> dict[str, Any]:
        """Returns the tensors under the module's names. Leaves tensors with a module's name or an
        unknown name unchanged.
        """
        return dict(self._renamed(tensors, blocks))

    def _renamed(self, tensors: Mapping[str, Any], blocks: int) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors.items():
            layer, _, parameter = name.rpartition(".")
            found = self.rows(layer, blocks)
            if not found:
                yield self._tensor(name), tensor
            for rows in found:
                yield f"{rows.layer}.{PARAMETERS.get(parameter, parameter)}", rows.cut(tensor)

    def _tensor(self, name: str) -> str:
        """Returns the module's name of a tensor other than a layer's weight or bias."""
        for pattern, own in self._tensor_patterns:
            if match := pattern.fullmatch(name):
                return own.replace(NUMBER, next(iter(match.groups()), ""))
        return name


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape(NUMBER), r"(\d+)"))


def _numbers(paths: Collection[str]) -> list[str]:
    """Returns the numbers among the words of paths, in order."""
    words = {word for path in paths for word in path.split(".") if word.isdigit()}
    return sorted(words, key=int)
