"""Describes operations for keys by which results of requests are found again. The own texts of a
request, those of its positive side, are apart from the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from torch import Tensor

from katz_graph.core.recipe import ConditioningEntry, Encoding, tensor_digest
from katz_graph.ir.region import Operation, Ref, local_name

OWN_TEXT = "positive"  # prefix of local names of operations that read the own texts
ENCODING = "encoding"  # field of a ConditioningEntry


def reads_own_text(operation: Operation) -> bool:
    return local_name(operation.id).startswith(OWN_TEXT)


def part_of_key(operation: Operation, texts: list[tuple[str, Encoding]]) -> tuple[Any, ...]:
    """Returns an operation's part of a key, without own texts, which it appends to `texts`."""
    inputs = dict(operation.inputs)
    name = local_name(operation.id)
    if reads_own_text(operation) and "conditioning" in inputs:
        entries: Sequence[ConditioningEntry] = inputs["conditioning"]
        texts += [(name, entry.encoding) for entry in entries]
        inputs["conditioning"] = [
            [(one.name, getattr(entry, one.name)) for one in fields(entry) if one.name != ENCODING]
            for entry in entries
        ]
    return name, operation.stage, operation.type, sorted(map(_named, inputs.items()))


def _named(item: tuple[str, Any]) -> tuple[str, str]:
    name, value = item
    if isinstance(value, Tensor):
        return name, tensor_digest(value)
    if isinstance(value, Ref):
        value = replace(value, operation=local_name(value.operation))
    return name, repr(value)
