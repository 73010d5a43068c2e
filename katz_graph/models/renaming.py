"""Maps the names of an original code to those of a module, where fused rows come apart and two
halves may change places. One table serves files and LoRAs. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

NUMBER = "{}"  # stands for a block's in the names of a table
PARAMETERS = {"scale": "weight"}  # of norms, in the original code


@dataclass(frozen=True, slots=True)
class Rows:
    """Names a layer of the module, and its share of the original's rows: from `start` to `stop` of
    `of` equal parts. `swapped`: its two halves are the other way round there.
    """

    layer: str
    start: int = 0
    stop: int = 1
    of: int = 1
    swapped: bool = False

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
                last = number == str(blocks - 1)
                swapped = known in self.swapped or (last and known in self.swapped_in_last)
                names = [one.replace(NUMBER, number) for one in self.layers[known]]
                shares = self.shares.get(known, (1,) * len(names))
                ends = [sum(shares[: place + 1]) for place in range(len(shares))]
                return tuple(
                    Rows(name, end - share, end, sum(shares), swapped)
                    for name, share, end in zip(names, shares, ends, strict=True)
                )
        return ()

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
