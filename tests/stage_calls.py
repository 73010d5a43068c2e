"""Replaces the computation of stages for tests, to slow them down or make them fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from katz_graph.models.stages import Count, Outputs, Stage, uncounted

Compute = Callable[[Any, Mapping[str, Any]], Outputs]


def replace_stage(
    monkeypatch: pytest.MonkeyPatch, name: str, instead: Callable[[Compute], Compute]
) -> None:
    """Replaces a stage's computation by `instead(compute)`."""
    real = Stage.computed

    def computed(stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if stage.name != name:
            return real(stage, module, given)
        return instead(lambda module, given: real(stage, module, given))(module, given)

    monkeypatch.setattr(Stage, "computed", computed)


def none(module: Any, given: Mapping[str, Any]) -> Tensor:
    raise AssertionError


@dataclass(frozen=True)
class Computed(Stage):
    """Computes a stage with a function instead of looking one up by name."""

    name: str = "test"
    count: Count = uncounted
    call: Callable[[Any, Mapping[str, Any]], Tensor] = none

    def computed(self, module: Any, given: Mapping[str, Any]) -> Outputs:
        return (self.call(module, given),)
