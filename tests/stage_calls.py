"""Stages that compute otherwise, as tests need them: slowly, or with errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from katz_graph.models.stages import Outputs, Stage

Compute = Callable[[Any, Mapping[str, Any]], Outputs]


def replace_stage(
    monkeypatch: pytest.MonkeyPatch, name: str, instead: Callable[[Compute], Compute]
) -> None:
    """Have `instead(compute)` computed for a stage."""
    real = Stage.computed

    def computed(stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if stage.name != name:
            return real(stage, module, given)
        return instead(lambda module, given: real(stage, module, given))(module, given)

    monkeypatch.setattr(Stage, "computed", computed)
