"""Maps the names of an original code to those of a module, where fused rows come apart and two
halves may change places. One table serves files and LoRAs. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

NUMBER = "{}"  # stands for a block's in the names of a table
PARAMETERS = {"scale": "weight"}  # of norms, in the original code


@dataclass(frozen=True, slots=True)
class Rows:
    """Names a layer or parameter of the module, and its share of the original's rows: from `start`
    to `stop` of `of` equal parts. `swapped`: its two halves are the other way round there.
    """

    layer: str
    start: int = 0
    stop: int = 1
    of: int = 1
    swapped: bool = False

    @property
    def whole(self) -> bool:
        """Tells if the layer is the original, row by row."""
        return self.stop - self.start == self.of and not self.swapped

    def cut(self, tensor: Any) -> Any:
        """Returns this layer's rows of the original's tensor."""
        unit = len(tensor) // self.of
        part = tensor if self.of == 1 else tensor[self.start * unit : self.stop * unit]
        return part.roll(len(part) // 2, 0) if self.swapped else part


@dataclass(frozen=True)
class Renaming:
    """Holds the table of a network. `layers`: original layer -> those of the module that its rows
    are, in order; `shares`: the sizes of these among each other, where they are not equal;
    `swapped`: original layers of two halves in another order, `swapped_in_last` only in the last
    block; `tensors`: names of tensors that are no weight or bias of a layer.
    """

    layers: Mapping[str, tuple[str, ...]]
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    swapped: frozenset[str] = frozenset()
    swapped_in_last: frozenset[str] = frozenset()
    tensors: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        number = re.escape(NUMBER)
        return [
            (re.compile(re.escape(layer).replace(number, r"(\d+)")), layer) for layer in self.layers
        ]

    def rows(self, layer: str, blocks: int) -> tuple[Rows, ...]:
        """Returns the layers of the module that an original layer is; none for an unknown one.
        `blocks`: of those that the layer is numbered among.
        """
        for pattern, known in self._patterns:
            if match := pattern.fullmatch(layer):
                number = next(iter(match.groups()), "")
                return self._rows(known, number, number == str(blocks - 1))
        return ()

    def originals(self, parameters: Collection[str]) -> dict[str, tuple[Rows, ...]]:
        """Returns the original names of a module's parameters, each with the parameters whose rows
        it is. A layer that comes apart also has a name for each piece: its own and a number.
        """
        present = frozenset(parameters)
        found: dict[str, tuple[Rows, ...]] = {
            name: (Rows(own),) for name, own in self.tensors.items() if own in present
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
        """Yields the original layers of a module with these parameters, each with what `rows` makes
        of it.
        """
        paths = {name.rpartition(".")[0] for name in parameters}
        words = {word for path in paths for word in path.split(".") if word.isdigit()}
        numbers = sorted(words, key=int)
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
        """Returns the layers of the module that a layer of the table is in one block."""
        swapped = known in self.swapped or (last and known in self.swapped_in_last)
        names = [name.replace(NUMBER, number) for name in self.layers[known]]
        shares = self.shares.get(known, (1,) * len(names))
        ends = [sum(shares[: place + 1]) for place in range(len(shares))]
        return tuple(
            Rows(name, end - share, end, sum(shares), swapped)
            for name, share, end in zip(names, shares, ends, strict=True)
        )

    def converted(self, tensors: Mapping[str, Any], blocks: int) -> dict[str, Any]:
        """Returns the tensors as the module names them; those that it does so already, or that are
        unknown, as they are.
        """
        return dict(self._renamed(tensors, blocks))

    def _renamed(self, tensors: Mapping[str, Any], blocks: int) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors.items():
            layer, _, parameter = name.rpartition(".")
            found = self.rows(layer, blocks)
            if not found:
                yield self.tensors.get(name, name), tensor
            for rows in found:
                yield f"{rows.layer}.{PARAMETERS.get(parameter, parameter)}", rows.cut(tensor)
