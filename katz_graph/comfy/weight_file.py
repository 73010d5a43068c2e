"""Holds the tensors of a weight file for packs: a dictionary that remembers its file, so that a
recipe can name that.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class WeightFile(dict[str, Any]):
    """Maps names to tensors. One that a pack put, replaced or took out makes it another model than
    that of the file.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.path = path
        self._original = dict(tensors)
        self._was_set = False

    def __setitem__(self, name: str, value: Any) -> None:
        self._was_set = True  # also by `weights[name] *= 2`, which leaves the same tensor
        super().__setitem__(name, value)

    def is_as_in_file(self) -> bool:
        return (
            not self._was_set
            and len(self) == len(self._original)
            and all(self.get(name) is self._original[name] for name in self)
        )


def file_of(weights: Any, purpose: str) -> Path:
    """Returns the file of these weights. InputError when a pack made them up or changed them."""
    if isinstance(weights, WeightFile) and weights.is_as_in_file():
        return weights.path
    raise InputError(
        f"{purpose} takes weights as comfy.utils.load_torch_file gives them; the pack made or "
        "changed these"
    )
