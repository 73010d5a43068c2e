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
from katz_graph.models.stages import Loop, Stage
from katz_graph.planner.region import stage_of


@dataclass(frozen=True, slots=True)
class Bound:
    """Holds a call without its tensors: the stage, the live module, the LoRAs that must be resident
    in the module, and constants on the device.
    """

    stage: Stage
    module: Any
    loras: Resident
    constants: Mapping[str, Any]


class BoundCalls:
    """Binds each call to its module and constants when it first runs; each variant's operations
    separately, as constants may differ. The modules must stay loaded until `clear`.
    """

    def __init__(self, models: DeviceModels, loop: Loop, nodes: RegionCalls) -> None:
        self._models, self._loop, self._nodes = models, loop, nodes
        # by the id() of operations, which the program keeps alive
        self._known: dict[tuple[int, ...], Bound] = {}

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
    ) -> Offer:
        """Binds one call, or two independent calls. `members`: operations of each call; `given`:
        inputs from other operations; `key`: `Call.shares`.
        """
        ready = tuple(map(self._ready, members, given))
        first = members[0]
        return Offer(
            ready,
            key if len(ready) == 1 else "",
            tuple(len(some) * self._loop.shape[0] for some in members),
            self._known[tuple(map(id, first))].loras,
            f"{what}, {first[0].stage.replace('_', ' ')}",
            count,
        )

    def _ready(self, members: Sequence[Operation], given: Mapping[str, Any]) -> StageCall:
        """Binds one call and adds its inputs from other operations."""
        key = tuple(map(id, members))
        if key not in self._known:
            self._known[key] = self._bind(members)
        bound = self._known[key]
        rows = {
            name: self._rows([given[name]] * len(members))
            for name in bound.stage.rows
            if name in given
        }
        return StageCall(bound.stage, bound.module, {**bound.constants, **given, **rows})

    def clear(self) -> None:
        """Releases the modules."""
        self._known.clear()

    def _bind(self, members: Sequence[Operation]) -> Bound:
        stage, inputs = stage_of(members[0]), members[0].inputs
        known = [name for name in stage.rows if not isinstance(inputs[name], (Ref, Previous))]
        rows = {name: self._rows([member.inputs[name] for member in members]) for name in known}
        constants = on_device(stage.bound(inputs, self._loop), self._models.device)
        recipe = inputs.get(stage.module) if stage.module else None
        module = None if recipe is None else self._models.module(recipe)
        loras = network_loras(recipe) if isinstance(recipe, ModelRecipe) else ()
        return Bound(stage, module, loras, {**constants, **rows})

    def _rows(self, numbers: Sequence[Any]) -> Tensor:
        """Returns float32 [B]: each member's number, repeated for each of its images."""
        rows = torch.tensor([float(number) for number in numbers])
        return to_device(rows.repeat_interleave(self._loop.shape[0]), self._models.device)
