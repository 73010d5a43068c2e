"""Represents lists on outputs. A node that takes single values runs once per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Listed:
    """Holds several values, or none, on one output. A single value is stored unwrapped, so that
    ordinary nodes never see this class.
    """

    values: tuple[Any, ...]


def elements(value: Any) -> Sequence[Any]:
    """Returns the values on an output."""
    return value.values if isinstance(value, Listed) else (value,)


def joined(values: Sequence[Any]) -> Any:
    """Joins values for one output."""
    return values[0] if len(values) == 1 else Listed(tuple(values))


def per_element(inputs: Mapping[Key, Any]) -> list[dict[Key, Any]]:
    """Returns the inputs of each run of a node. The longest list sets the number of runs; shorter
    lists repeat their last value. An empty list means no runs.
    """
    columns = {name: elements(value) for name, value in inputs.items()}
    if not all(columns.values()):
        return []
    longest = max(map(len, columns.values()), default=1)
    return [
        {name: column[min(number, len(column) - 1)] for name, column in columns.items()}
        for number in range(longest)
    ]
