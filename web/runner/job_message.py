"""Defines the job message to the runner: all that it needs to run the job, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Order:
    """`prompt` in API format, checked already; `extra` is the client's `extra_data`."""

    id: str
    prompt: Mapping[str, Any]
    targets: tuple[str, ...]
    client: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


ORDER: TypeAdapter[Order] = TypeAdapter(Order)
