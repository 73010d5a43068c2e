"""How many bytes a value is that one operation hands to another: what a link carries when they stand on different devices."""

from __future__ import annotations

from math import prod

from katz_graph.planner.program import Program
from katz_graph.planner.region import CROP, Operation, Previous, Ref, stage_of

EXACT = 4  # bytes of a float32: the sampler's latents and the predictions


class Sizes:
    """Bytes of the values of a program whose `work`, `shape` and `cells` are known. InputError for what a stage gives that nobody knows."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._begin = program.region.begin.id
        self._model_bytes = max((device.value_bytes for device in program.devices), default=EXACT)
        self._operations: dict[str, Operation] = {op.id: op for op in program.before}
        for variant in program.variants:
            for operation in variant.operations:
                self._operations.setdefault(operation.id, operation)
        self._known: dict[Ref, float] = {}

    def of(self, ref: Ref) -> float:
        if ref not in self._known:
            self._known[ref] = self._bytes(ref)
        return self._known[ref]

    def _bytes(self, ref: Ref) -> float:
        operation = self._operations.get(ref.operation)
        if operation is None or operation.type == CROP:  # the step, whole or a part of it
            return self._step(ref.operation)
        output = self._program.work[operation.id].output_bytes
        match stage_of(operation).output(ref.output):
            case "state":  # features carry the step along
                return output + (self._features(operation) or self._step(operation.id))
            case "hidden":  # like the one read, and at most the skips that came with it
                return max(output, self._features(operation))
            case "counted":
                return output
            case "prediction":
                return self._latent(operation.id) * EXACT

    def _features(self, operation: Operation) -> float:
        value = operation.inputs.get("features")
        if isinstance(value, Previous):
            carried = (variant.carried.get(value.slot) for variant in self._program.variants)
            value = next((found for found in carried if isinstance(found, Ref) and found.operation != operation.id), None)
        return self.of(value) if isinstance(value, Ref) else 0.0

    def _step(self, name: str) -> float:
        return self._latent(name) * (EXACT + self._model_bytes)

    def _latent(self, name: str) -> float:
        return float(prod((*self._program.shape[:2], *self._program.cells.get(name, self._program.shape[2:]))))
