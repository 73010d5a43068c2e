"""Binds the calls of one request to live modules and constants, which it looks up only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import ModelRecipe
from katz_graph.executor.calls.batching import on_device
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.calls.rows import taken
from katz_graph.executor.graph.region_calls import RegionCalls
from katz_graph.executor.weights.weight_set import Resident
from katz_graph.executor.worker.models import DeviceModels, network_loras
from katz_graph.host.transfer import to_device
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.models.row_loras import LoraFactors
from katz_graph.models.stages import Loop, Stage
from katz_graph.planner.region import stage_of


@dataclass(frozen=True, slots=True)
class Bound:
    """Holds a call without its tensors: the stage, the live module, constants on the device, the
    model whose LoRAs apply, and these LoRAs if they are merged.
    """

    stage: Stage
    module: Any
    constants: Mapping[str, Any]
    model: ModelRecipe | None
    loras: Resident


class BoundCalls:
    """Binds each call to its module and constants when it first runs; each variant's operations
    separately, as constants may differ. The modules must stay loaded until `clear`.
    """

    def __init__(self, models: DeviceModels, loop: Loop, nodes: RegionCalls) -> None:
        self._models, self._loop, self._nodes = models, loop, nodes
        # by the id() of operations, which the program keeps alive
        self._known: dict[tuple[int, ...], Bound] = {}
        self._factors: dict[Resident, LoraFactors | None] = {}

    def node(self, node: Operation, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Calls a pack's node. It is not retried if memory runs out, because it may have side
        effects.
        """
        values = {name: taken(value) for name, value in given.items()}
        return self._nodes.call(node, {**node.inputs, **values})

    def offer(
        self,
        members: Sequence[Sequence[Operation]],
        given: Sequence[Mapping[str, Any]],
        what: str,
        key: str,
        count: Callable[[Counter[str]], None],
        by_row: bool = False,
    ) -> Offer:
        """Binds one call, or two independent calls. `members`: operations of each call; `given`:
        inputs from other operations; `key`: `Call.shares`; `by_row`: LoRAs are not merged.
        """
        bound = [self._bound(some) for some in members]
        return Offer(
            tuple(map(self._ready, bound, given, map(len, members))),
            key if len(bound) == 1 else "",
            tuple(len(some) * self._loop.shape[0] for some in members),
            () if by_row else bound[0].loras,
            tuple(self._factors_of(one) if by_row else None for one in bound),
            f"{what}, {members[0][0].stage.replace('_', ' ')}",
            count,
        )

    def _factors_of(self, bound: Bound) -> LoraFactors | None:
        if not bound.loras or bound.model is None:
            return None
        if bound.loras not in self._factors:
            self._factors[bound.loras] = self._models.lora_factors(bound.model)
        return self._factors[bound.loras]

    def _ready(self, bound: Bound, given: Mapping[str, Any], members: int) -> StageCall:
        """Adds a call's inputs from other operations. `members`: number of its operations."""
        rows = {
            name: self._rows([given[name]] * members) for name in bound.stage.rows if name in given
        }
        return StageCall(bound.stage, bound.module, {**bound.constants, **given, **rows})

    def _bound(self, members: Sequence[Operation]) -> Bound:
        key = tuple(map(id, members))
        if key not in self._known:
            self._known[key] = self._bind(members)
        return self._known[key]

    def clear(self) -> None:
        """Releases the modules."""
        self._known.clear()
        self._factors.clear()

    def _bind(self, members: Sequence[Operation]) -> Bound:
        stage, inputs = stage_of(members[0]), members[0].inputs
        known = [name for name in stage.rows if not isinstance(inputs[name], (Ref, Previous))]
        rows = {name: self._rows([member.inputs[name] for member in members]) for name in known}
        constants = on_device(stage.bound(inputs, self._loop), self._models.device)
        recipe = inputs.get(stage.module) if stage.module else None
        module = None if recipe is None else self._models.module(recipe)
        model = recipe if isinstance(recipe, ModelRecipe) else None
        loras = () if model is None else network_loras(model)
        return Bound(stage, module, {**constants, **rows}, model, loras)

    def _rows(self, numbers: Sequence[Any]) -> Tensor:
        """Returns float32 [B]: each member's number, repeated for each of its images."""
        rows = torch.tensor([float(number) for number in numbers])
        return to_device(rows.repeat_interleave(self._loop.shape[0]), self._models.device)
