"""One request's sampling on one worker: its values, slots and sampler. Advanced by whole evaluations, so that requests can alternate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from katz_graph.errors import RunError
from katz_graph.executor.models import Models
from katz_graph.executor.stages import STAGES, Situation
from katz_graph.executor.values import Values
from katz_graph.planner.program import Call, Program
from katz_graph.planner.region import NODE, SLOTS, Operation
from katz_graph.recipe import ControlNetRecipe, ModelRecipe
from katz_graph.sampling.evaluation import Step
from katz_graph.sampling.noise_table import NoiseTable
from katz_graph.sampling.process import start_process
from katz_graph.sampling.spec import Spec

LOADED = (ModelRecipe, ControlNetRecipe)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time on a device, for traces: seconds on the clock of `time.perf_counter`."""

    name: str
    start: float
    seconds: float
    evaluation: int | None = None


@dataclass(slots=True)
class Timing:
    """What a request took, in seconds. `load`: from files, nothing when all was there; `prepare`: what precedes the loop.

    Patching of weights is part of whatever needed it.
    """

    load: float = 0.0
    prepare: float = 0.0
    denoise: float = 0.0
    spans: list[Span] = field(default_factory=list)


class Execution:
    """Runs a program's instructions for one request. `latent` is [B, C, h, w] as it is on wires (unscaled)."""

    def __init__(
        self,
        program: Program,
        spec: Spec,
        table: NoiseTable,
        latent: Tensor,
        models: Models,
        on_evaluation: Callable[[int, int], None] | None = None,
    ) -> None:
        self.program = program
        self.timing = Timing()
        self._models = models
        self._on_evaluation = on_evaluation or (lambda done, total: None)
        self._scale = program.region.begin.inputs["model"].latent_scale
        scaled = latent.float() * self._scale if latent.any() else latent.float()
        self._process = start_process(spec, scaled, table, models.device, models.dtype)
        self._situation = Situation(models, tuple(latent.shape))
        self._before = Values()
        self._prepared = False
        self._slots = {
            slot: program.region.begin.inputs[f"initial_{slot}"]
            for slot in range(1, SLOTS + 1)
            if program.region.begin.inputs.get(f"initial_{slot}") is not None
        }
        self._variant = {index: number for number, variant in enumerate(program.variants) for index in variant.evaluations}
        self._operations = [{op.id: op for op in variant.operations} for variant in program.variants]
        self._before_operations = {op.id: op for op in program.before}

    @property
    def weight_set(self) -> Any:
        """What has to be resident for this request to run without patching."""
        return self.program.region.begin.inputs["model"]

    def step(self) -> bool:
        """Load and prepare, or run one whole evaluation. True when the request is done."""
        if not self._prepared:
            self._load()
            self._prepare()
            return self._process.next_step() is None
        step = self._process.next_step()
        if step is None:
            return True
        self._evaluate(step)
        self._on_evaluation(step.index + 1, len(self.program.schedule))
        return self._process.next_step() is None

    @property
    def result(self) -> Tensor:
        """The final latent [B, C, h, w], unscaled, float32 on the CPU."""
        unscaled: Tensor = self._process.result / self._scale
        return unscaled.float().cpu()

    def _load(self) -> None:
        """Load what the program's operations need, so that its time is not taken for theirs."""
        started = time.perf_counter()
        operations = [op for variant in self.program.variants for op in variant.operations] + list(self.program.before)
        for value in dict.fromkeys(value for op in operations for value in op.inputs.values() if isinstance(value, LOADED)):
            self._models.load(value)
        for entry in dict.fromkeys(entry for op in self.program.before for entry in op.inputs.get("entry", ())):
            self._models.load(entry.clip)
        self.timing.load = self._span("load", started, None)

    def _prepare(self) -> None:
        started = time.perf_counter()
        for call in self.program.before_calls:
            self._run(call, self._before_operations, self._before)
        self._prepared = True
        self.timing.prepare = self._span("prepare", started, None)

    def _evaluate(self, step: Step) -> None:
        started = time.perf_counter()
        number = self._variant[step.index]
        variant = self.program.variants[number]
        values = Values(self._before, self._slots)
        values.put((self.program.region.begin.id,), (step,))
        for segment in self.program.segments[number]:
            began = time.perf_counter()
            for call in segment.calls:
                self._run(call, self._operations[number], values)
            self._span(segment.name, began, step.index)
        prediction = values.resolve(variant.prediction)
        if not isinstance(prediction, Tensor):
            raise RunError(f"node {self.program.name}: evaluation {step.index} gave no prediction; a UNetDecoder must reach the last block")
        self._slots = {slot: values.resolve(value) for slot, value in variant.carried.items()}
        self._process.advance(prediction)
        self._check_finite(prediction, step)
        self.timing.denoise += time.perf_counter() - started

    def _run(self, call: Call, operations: dict[str, Operation], values: Values) -> None:
        members = [operations[name] for name in call.operations]
        inputs = {name: values.gather([member.inputs.get(name) for member in members]) for name in members[0].inputs}
        if call.stage == NODE:
            run = members[0].run
            assert run is not None
            outputs = run(None, inputs)
        else:
            outputs = STAGES[call.stage](self._situation, inputs)
        values.put(call.operations, outputs)

    def _span(self, name: str, started: float, evaluation: int | None) -> float:
        seconds = time.perf_counter() - started
        self.timing.spans.append(Span(name, started, seconds, evaluation))
        return seconds

    def _check_finite(self, prediction: Tensor, step: Step) -> None:
        if not torch.isfinite(prediction).all():
            raise RunError(
                f"node {self.program.name}: the latent became NaN or infinite in step {step.step + 1} "
                f"(evaluation {step.index + 1} of {len(self.program.schedule)}); try another dtype, VAE or a lower guidance"
            )
