"""Puts several values on one output, and maps a node that knows nothing of lists over them, once
per element.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Listed:
    """Holds several values, or none, on one output. A single one stands there as it is, so that
    ordinary nodes never meet this.
    """

    values: tuple[Any, ...]


def elements(value: Any) -> Sequence[Any]:
    """Returns the values on an output."""
    return value.values if isinstance(value, Listed) else (value,)


def joined(values: Sequence[Any]) -> Any:
    """Joins values for one output."""
    return values[0] if len(values) == 1 else Listed(tuple(values))


def per_element(inputs: Mapping[Key, Any]) -> list[dict[Key, Any]]:
    """Returns the inputs of each run of a node: as many as the longest list has, of shorter ones
    the last again. There are no runs where a list is empty.
    """
    columns = {name: elements(value) for name, value in inputs.items()}
    if not all(columns.values()):
        return []
    longest = max(map(len, columns.values()), default=1)
    return [
        {name: column[min(number, len(column) - 1)] for name, column in columns.items()}
        for number in range(longest)
    ]
