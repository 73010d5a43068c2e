"""Binds the calls of one request to live modules and constants, which it looks up only once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import ModelRecipe
from katz_graph.executor.calls.batching import on_device
from katz_graph.executor.calls.computing import Offer, StageCall
from katz_graph.executor.calls.rows import taken
from katz_graph.executor.calls.values import Reading
from katz_graph.executor.graph.region_calls import RegionCalls
from katz_graph.executor.weights.weight_set import Resident
from katz_graph.executor.worker.models import DeviceModels, network_loras
from katz_graph.host.transfer import to_device
from katz_graph.ir.program import Call
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
    forms: dict[Hashable, Any] = field(default_factory=dict)  # of inputs that last (`Offer.forms`)


@dataclass(slots=True, eq=False)
class Members:
    """Holds the operations of one call, what they read from other operations, and the call without
    tensors once it ran.
    """

    operations: Sequence[Operation]
    reads: Mapping[str, Reading]  # by input
    bound: Bound | None = None


class BoundCalls:
    """Binds each call to its module and constants when it first runs; each variant's operations
    separately, as constants may differ. The modules must stay loaded until `clear`.
    """

    def __init__(self, models: DeviceModels, loop: Loop, nodes: RegionCalls) -> None:
        self._models, self._loop, self._nodes = models, loop, nodes
        # by the id() of a call and of its version's operations, which both outlive this object
        self._known: dict[tuple[int, int], Members] = {}
        # by values, so that all calls that read the same values have the same object
        self._readings: dict[tuple[Ref, ...], Reading] = {}
        self._factors: dict[Resident, LoraFactors | None] = {}

    def members(self, call: Call, operations: Mapping[str, Operation]) -> Members:
        """Returns the members of a call. `operations`: of its variant, by id."""
        key = id(call), id(operations)
        if key not in self._known:
            members = [operations[name] for name in call.operations]
            reads = {
                name: self._reading([member.inputs.get(name) for member in members])
                for name, value in members[0].inputs.items()
                if isinstance(value, (Ref, Previous))
            }
            self._known[key] = Members(members, reads)
        return self._known[key]

    def _reading(self, values: Sequence[Any]) -> Reading:
        reading = Reading.of(values)
        return self._readings.setdefault(reading.values, reading) if reading.produced else reading

    def node(self, node: Operation, given: Mapping[str, Any]) -> tuple[Any, ...]:
        """Calls a pack's node. It is not retried if memory runs out, because it may have side
        effects.
        """
        values = {name: taken(value) for name, value in given.items()}
        return self._nodes.call(node, {**node.inputs, **values})

    def offer(
        self,
        members: Sequence[Members],
        given: Sequence[Mapping[str, Any]],
        what: str,
        key: str,
        count: Callable[[Mapping[str, int]], None],
        by_row: bool = False,
    ) -> Offer:
        """Binds one call, or two independent calls. `given`: inputs from other operations of each;
        `key`: `Call.shares`; `by_row`: LoRAs are not merged.
        """
        bound = [self._bound(some) for some in members]
        numbers = [len(some.operations) for some in members]
        return Offer(
            tuple(map(self._ready, bound, given, numbers)),
            key if len(bound) == 1 else "",
            tuple([number * self._loop.shape[0] for number in numbers]),
            () if by_row else bound[0].loras,
            tuple([self._factors_of(one) if by_row else None for one in bound]),
            f"{what}, {bound[0].stage.name.replace('_', ' ')}",
            count,
            tuple([one.forms for one in bound]),
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

    def _bound(self, members: Members) -> Bound:
        if members.bound is None:
            members.bound = self._bind(members.operations)
        return members.bound

    def clear(self) -> None:
        """Releases the modules."""
        self._known.clear()
        self._readings.clear()
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
