"""Provides the tensors of a weight file to packs, in a dictionary that stores the file's path, so
that a recipe can refer to the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor


class WeightFile(dict[str, Any]):
    """Maps names to tensors. If a pack adds, replaces or removes a tensor, the file no longer
    describes the weights.
    """

    def __init__(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(tensors)
        self.path = path
        self._original = dict(tensors)
        self._was_set = False

    def __setitem__(self, name: str, value: Any) -> None:
        self._was_set = (
            True  # also after `weights[name] *= 2`, which modifies the same tensor in place
        )
        super().__setitem__(name, value)

    def is_as_in_file(self) -> bool:
        return (
            not self._was_set
            and len(self) == len(self._original)
            and all(self.get(name) is self._original[name] for name in self)
        )


def file_of(weights: Any, purpose: str) -> Path:
    """Returns the file of these weights. InputError if a pack created or changed them."""
    if isinstance(weights, WeightFile) and weights.is_as_in_file():
        return weights.path
    raise InputError(
        f"{purpose} needs unchanged weights from comfy.utils.load_torch_file; the pack changed them"
    )
