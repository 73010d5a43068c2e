"""Pass *emit*: writes one instruction list per device, and predicts the plan's seconds.

For every evaluation, the lists state completely what each device computes, sends, receives and
retains. Nothing is decided at run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from katz_graph.core.recipe import Component, Lora, ModelRecipe
from katz_graph.files.urls import shown
from katz_graph.ir.program import (
    PRESENT,
    Instance,
    Instances,
    Instruction,
    Program,
    reads_template,
)
from katz_graph.ir.region import Operation, Ref
from katz_graph.planner.queries import adapters, weight_sets
from katz_graph.planner.report.explain import predict, profile_note, reading_notes
from katz_graph.planner.sharing import evaluation_runs


def emit(program: Program) -> Program:
    """Sets `instructions`, for the devices that have work, `prediction` and `runs`. Adds to `notes`
    the waits for LoRAs, and the share of stages without a profile.
    """
    prediction = predict(program)
    return replace(
        program,
        instructions=_Lists(program).written(),
        prediction=prediction,
        runs=tuple(evaluation_runs(program, prediction.evaluations)),
        notes=(*program.notes, *reading_notes(program, prediction), *profile_note(program)),
    )


class _Lists:
    """Writes the lists twice. The first pass finds each instance's receivers and last use, which
    determine the `send` instructions and retained instances of the second pass.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._instances = Instances(program)
        self._begin = program.region.begin.id
        self._segments = dict(
            zip((variant.name for variant in program.variants), program.segments, strict=True)
        )
        self._before = {operation.id: operation for operation in program.before}
        self._devices: list[str] = []
        # operation before the loop -> devices that compute it
        self._made_before: dict[str, list[str]] = {}
        for call in program.before_calls:
            for name in call.operations:
                self._made_before.setdefault(name, []).append(call.device)
        # (operation, evaluation) -> (instance, receiver)
        self._waiting: dict[tuple[str, int | None], dict[tuple[Instance, str], None]] = {}
        # (device, evaluation that made the instance) -> instance -> last use
        self._last_use: dict[tuple[str, int | None], dict[Instance, int]] = {}

    def written(self) -> Mapping[str, tuple[Instruction, ...]]:
        program = self._program
        placed = (
            *program.placement.values(),
            *(call.device for call in program.before_calls),
            program.sampler_device,
        )
        self._devices = [device.name for device in program.target.devices if device.name in placed]
        for device in self._devices:
            list(self._list(device))
        return {device: tuple(self._list(device)) for device in self._devices}

    def _list(self, device: str) -> Iterator[Instruction]:
        here: dict[Instance, None] = {}
        weights = _Weights(weight_sets(self._program, device))
        for file in adapters(self._program, device):
            yield Instruction("fetch", shown(file.path))
        for point in self._program.schedule[:1]:
            yield from self._loads(device, point.index)
        yield from self._lora_mask(device, None)
        yield from weights.first()
        for call in (call for call in self._program.before_calls if call.device == device):
            yield from weights.patches(self._before[name] for name in call.operations)
            yield from self._receive(
                device,
                [ref for name in call.operations for _, ref in self._before[name].references()],
                None,
                here,
            )
            yield Instruction("prepare", call.operations[0])
            yield from self._send(device, call.operations, None)
        for point in self._program.schedule:
            yield from self._lora_mask(device, point.index)
            yield from self._evaluation(device, point.index, here, weights)

    def _lora_mask(self, device: str, index: int | None) -> Iterator[Instruction]:
        """Yields instructions that exchange the mask of available deferred LoRAs, until all are
        required. The sampler's device sends the mask, the others apply it.
        """
        deferred, sampler_device = self._program.deferred_loras, self._program.sampler_device
        if deferred is None or (index is not None and index > max(deferred.waits)):
            return
        if device == sampler_device:
            yield Instruction("weights", PRESENT, index)
            for other in self._devices:
                if other != sampler_device:
                    yield Instruction("send", PRESENT, index, peer=other)
        else:
            yield Instruction("receive", PRESENT, index, peer=sampler_device)
            yield Instruction("weights", PRESENT, index)

    def _evaluation(
        self, device: str, index: int, here: dict[Instance, None], weights: _Weights
    ) -> Iterator[Instruction]:
        variant, samples = self._instances.variant(index), device == self._program.sampler_device
        segments = [segment for segment in self._segments[variant.name] if segment.device == device]
        operations = {operation.id: operation for operation in variant.operations}
        if not (segments or samples):
            return
        yield Instruction("begin", "", index)
        if index < self._program.schedule[-1].index:
            yield from self._loads(device, index + 1)
        if samples:
            yield from self._send(device, [self._begin], index)
        for segment in segments:
            made = [name for call in segment.calls for name in call.operations]
            yield from self._receive(device, segment.reads, index, here)
            yield from weights.patches((operations[name] for name in made), index)
            yield Instruction("run", segment.name, index)
            yield from self._send(device, made, index)
        if samples:
            yield from self._receive(device, [variant.prediction], index, here)
            yield Instruction("advance", "x", index)
        made = [name for segment in segments for call in segment.calls for name in call.operations]
        yield Instruction("end", "", index, keeps=self._carried(device, index, made, here))

    def _loads(self, device: str, index: int) -> Iterator[Instruction]:
        """Yields instructions that start reading an evaluation's activations of a template."""
        if not reads_template(self._program, index):
            return
        for segment in self._segments[self._instances.variant(index).name]:
            operations = [name for call in segment.calls for name in call.operations]
            if segment.device == device and not self._program.reused.keys().isdisjoint(operations):
                yield Instruction("load", segment.name, index)

    def _receive(
        self, device: str, values: Iterable[Any], index: int | None, here: dict[Instance, None]
    ) -> Iterator[Instruction]:
        """Yields receive instructions for values of other devices that were not received yet."""
        for value in values:
            instance = Instance(value, None) if index is None else self._instances.of(value, index)
            if not isinstance(instance, Instance):
                continue
            if index is not None:
                uses = self._last_use.setdefault((device, instance.evaluation), {})
                uses[instance] = max(index, uses.get(instance, index))
            makers = self._makers(instance)
            if instance in here or device in makers:
                continue
            here[instance] = None
            self._waiting.setdefault((instance.ref.operation, instance.evaluation), {})[
                instance, device
            ] = None
            yield Instruction(
                "receive",
                instance.ref.operation,
                instance.evaluation,
                instance.ref.output,
                makers[0],
            )

    def _send(
        self, device: str, operations: Iterable[str], index: int | None
    ) -> Iterator[Instruction]:
        for name in operations:
            if self._makers(Instance(Ref(name), index))[0] != device:
                continue  # another device that computes this sends it
            for instance, receiver in self._waiting.get((name, index), ()):
                yield Instruction("send", name, index, instance.ref.output, receiver)

    def _makers(self, instance: Instance) -> list[str]:
        name = instance.ref.operation
        if name == self._begin:
            return [self._program.sampler_device]
        return (
            self._made_before[name]
            if instance.evaluation is None
            else [self._program.placement[name]]
        )

    def _carried(
        self, device: str, index: int, made: Iterable[str], here: dict[Instance, None]
    ) -> tuple[Instance, ...]:
        """Returns the instances that later evaluations need on this device."""
        produced = set(made)
        for instance, last in self._last_use.get((device, index), {}).items():
            if last > index and instance.ref.operation in produced:
                here[instance] = None
        for instance in [one for one in here if one.evaluation is not None]:
            if self._last_use[device, instance.evaluation][instance] <= index:
                del here[instance]
        return tuple(instance for instance in here if instance.evaluation is not None)


class _Weights:
    """Tracks the LoRAs resident in a device's networks, along its instruction list."""

    def __init__(self, sets: Mapping[str, ModelRecipe]) -> None:
        self._names = {model: name for name, model in sets.items()}
        self._resident: dict[Component, tuple[Lora, ...]] = {}

    def first(self) -> Iterator[Instruction]:
        """Yields the first patch of each network, before all other work."""
        for model, name in self._names.items():
            if model.network not in self._resident:
                self._resident[model.network] = model.loras
                yield Instruction("patch", name)

    def patches(
        self, operations: Iterable[Operation], index: int | None = None
    ) -> Iterator[Instruction]:
        """Yields the patches that these operations need before they run."""
        for operation in operations:
            model = operation.inputs.get("model")
            if (
                isinstance(model, ModelRecipe)
                and model in self._names
                and self._resident[model.network] != model.loras
            ):
                self._resident[model.network] = model.loras
                yield Instruction("patch", self._names[model], index)
