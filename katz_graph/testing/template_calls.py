"""Computes the calls of an engine's requests with the cached activations of a template, in memory
and without planner and store, as a reference and for benches. The engine runs in this process and
computes both branches of guidance in one call.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from katz_graph.executor.calls.computing import Eagerly, StageCall
from katz_graph.ir.values import CachedActivations, Features, Step, Tokens
from katz_graph.models.stages import Outputs, Stage

Template = Mapping[float, Mapping[str, Tensor]]
"""By noise level: the output [B, N, D] of each layer."""


class NotedCalls(Eagerly):
    """Notes the calls that requests may share: those of a network's stages."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[StageCall] = []

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        self.calls += [call for call in calls if call.stage.shareable]
        return super().together(calls)


class CollectingCalls(Eagerly):
    """Collects the outputs of all layers by noise level: fills a template."""

    def __init__(self) -> None:
        super().__init__()
        self.template: dict[float, dict[str, Tensor]] = defaultdict(dict)

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if not of_network(stage):
            return super().__call__(stage, module, given)
        outputs, found = collected(super().__call__(stage, module, {**given, "collects": True}))
        layers = self.template[_level(given)]
        assert not layers.keys() & found.keys(), "a level was computed in several calls"
        layers |= found
        return outputs


class CachedCalls(Eagerly):
    """Gives each layer its output for a template; computes active tokens only. Evaluations at noise
    levels above `max_level` compute all tokens.
    """

    def __init__(
        self, template: Template, positions: Mapping[int, Tensor], max_level: float = math.inf
    ) -> None:
        super().__init__()
        self._template, self._positions, self._max_level = template, positions, max_level

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        if of_network(stage) and _level(given) <= self._max_level:
            cached = CachedActivations(self._positions, self._template[_level(given)])
            given = {**given, "activations": cached}
        return super().__call__(stage, module, given)


def of_network(stage: Stage) -> bool:
    """Returns whether a stage belongs to the sampled network, so that it may have layers."""
    return stage.shareable and stage.module == "model"


def collected(outputs: Outputs) -> tuple[Outputs, Mapping[str, Tensor]]:
    """Returns the outputs of a call that collects, without those of its layers, and the latter."""
    *others, last = outputs
    return (tuple(others), last) if isinstance(last, dict) else (outputs, {})


def _level(given: Mapping[str, Any]) -> float:
    """Returns the noise level of a call, whose rows have one."""
    state: Features | Tokens | None = given.get("features")
    step: Step = given["step"] if state is None else state.step
    return float(step.sigma[0])
