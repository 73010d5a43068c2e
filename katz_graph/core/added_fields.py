"""Lets a recipe's class grow: a field added later is absent from the repr at its default, so that
the digests of older recipes do not change. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

ADDED: Mapping[str, bool] = MappingProxyType({"added": True})
"""Metadata of a field that the class did not have at first. The class derives from `Growing` and
has `repr=False`.
"""


class Growing:
    """Base of dataclasses with `ADDED` fields: the repr has those that differ from their default.

    The repr is a dataclass's otherwise.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        kind: Any = type(self)
        values = ((one, getattr(self, one.name)) for one in fields(kind) if one.repr)
        shown = ", ".join(
            f"{one.name}={value!r}"
            for one, value in values
            if not (one.metadata.get("added") and value == one.default)
        )
        return f"{kind.__qualname__}({shown})"
