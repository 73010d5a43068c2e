"""Computes the calls of one request; looks up live modules and constants only once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import ModelRecipe
from katz_graph.executor.graph.region_calls import RegionCalls
from katz_graph.executor.weights.weight_set import Resident
from katz_graph.executor.worker.batching import on_device
from katz_graph.executor.worker.computing import StageCall
from katz_graph.executor.worker.models import DeviceModels, network_loras
from katz_graph.host.transfer import to_device
from katz_graph.ir.region import Operation, Previous, Ref
from katz_graph.kernels.attention import attention_order
from katz_graph.models.stages import NODE, Loop, Stage
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

    def outputs(
        self,
        members: Sequence[Sequence[Operation]],
        given: Sequence[Mapping[str, Any]],
        what: str,
    ) -> Sequence[tuple[Any, ...]]:
        """Computes one call, or two independent calls. `members`: operations of each call; `given`:
        inputs from other operations. `what` names the request in an out-of-memory error. A stage
        has no side effects, so it is retried after memory is freed. A pack's node is not retried,
        because it may have side effects.
        """
        stage = members[0][0].stage
        if stage == NODE:
            ((node,),), (taken,) = members, given
            return [self._nodes.call(node, {**node.inputs, **taken})]

        # no closure, because an error's traceback would keep its values alive
        compute = partial(self._together, members, given)
        label = f"{what}, {stage.replace('_', ' ')}"
        return self._models.residents.with_room(label, compute)

    def _together(
        self, members: Sequence[Sequence[Operation]], given: Sequence[Mapping[str, Any]]
    ) -> Sequence[tuple[Any, ...]]:
        ready = list(map(self._ready, members, given))
        in_order = attention_order(self._models.device)
        with in_order if ready[0].stage.recorded else nullcontext():
            return self._models.compute.together(ready)

    def _ready(self, members: Sequence[Operation], given: Mapping[str, Any]) -> StageCall:
        """Binds one call and adds its inputs from other operations."""
        key = tuple(map(id, members))
        if key not in self._known:
            self._known[key] = self._bind(members)
        bound = self._known[key]
        assert self._models.resident_in(bound.module) == bound.loras, (
            f"{bound.stage.name} would compute with the LoRAs of another model"
        )
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
