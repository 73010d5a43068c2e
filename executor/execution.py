"""One request's sampling on one worker: its values, slots and sampler. Advanced by whole evaluations, so that requests can alternate."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from katz_graph.compat.current import running
from katz_graph.context import Context
from katz_graph.errors import InputError, RunError
from katz_graph.events import Evaluated
from katz_graph.executor.models import Models
from katz_graph.executor.stages import STAGES, Situation
from katz_graph.executor.values import Values
from katz_graph.executor.worker import WeightSet
from katz_graph.graph import Expansion
from katz_graph.models.text_recipe import clips
from katz_graph.planner.emit import weight_sets
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
    """Carries out a program's instruction list for one request. `latent` is [B, C, h, w] as it is on wires (unscaled)."""

    def __init__(self, program: Program, spec: Spec, table: NoiseTable, latent: Tensor, models: Models, context: Context) -> None:
        self.program = program
        self.timing = Timing()
        self._models, self._context = models, context
        self._model: ModelRecipe = program.region.begin.inputs["model"]
        scaled = latent.float() * self._model.latent_scale if latent.any() else latent.float()
        self._process = start_process(spec, scaled, table, models.device, models.dtype)
        self._situation = Situation(models, tuple(latent.shape))
        self._before = Values()
        self._values: Values | None = None  # of the evaluation that is under way
        self._slots = {
            slot: program.region.begin.inputs[f"initial_{slot}"]
            for slot in range(1, SLOTS + 1)
            if program.region.begin.inputs.get(f"initial_{slot}") is not None
        }
        (instructions,) = program.instructions.values()
        self._pending = iter(instructions)
        self._loaded = False
        self._preparations = {call.operations[0]: call for call in program.before_calls}
        self._before_operations = {op.id: op for op in program.before}
        self._segments = {segment.name: (number, segment) for number, run in enumerate(program.segments) for segment in run}
        self._operations = [{op.id: op for op in variant.operations} for variant in program.variants]
        self._variant = {index: variant for variant in program.variants for index in variant.evaluations}

    @property
    def weight_set(self) -> WeightSet:
        """The UNet of the loop and the LoRAs that have to be resident in it for this request to run without patching."""
        return self._model.unet, self._model.loras

    def step(self) -> bool:
        """Carry out instructions up to the next `advance`: one whole evaluation. True when the request is done."""
        with running(self._context, self.program.name):  # functions and nodes of packs in it may reach the run
            return self._evaluate()

    def _evaluate(self) -> bool:
        if not self._loaded:
            self._load()
            self._loaded = True
        for instruction in self._pending:
            started = time.perf_counter()
            match instruction.kind:
                case "patch":
                    self._models.unet(weight_sets(self.program)[instruction.target])
                    self.timing.prepare += self._span(f"patch {instruction.target}", started, None)
                case "prepare":
                    self._call(self._preparations[instruction.target], self._before_operations, self._before)
                    self.timing.prepare += self._span(instruction.target, started, None)
                case "run":
                    self._run_segment(instruction.target)
                    self.timing.denoise += self._span(instruction.target, started, instruction.evaluation)
                case "advance":
                    step = self._step()
                    self._advance(step)
                    self.timing.denoise += time.perf_counter() - started
                    self._context.report(Evaluated(self.program.name, step.index + 1, len(self.program.schedule)))
                    return self._process.next_step() is None
        return True

    @property
    def result(self) -> Tensor:
        """The final latent [B, C, h, w], unscaled, float32 on the CPU."""
        return self._unscaled(self._process.result)

    @property
    def denoised(self) -> Tensor:
        """The denoised latent that the last step began with, as `result`."""
        return self._unscaled(self._process.denoised)

    def _unscaled(self, latent: Tensor) -> Tensor:
        return (latent / self._model.latent_scale).float().cpu()

    def _load(self) -> None:
        """Load what the program's operations need, so that its time is not taken for theirs."""
        started = time.perf_counter()
        operations = [op for variant in self.program.variants for op in variant.operations] + list(self.program.before)
        for value in dict.fromkeys(value for op in operations for value in op.inputs.values() if isinstance(value, LOADED)):
            self._models.load(value)
        texts = [op.inputs["encoding"] for op in self.program.before if op.stage == "text_encoder"]
        for clip in dict.fromkeys(clip for encoding in texts for clip in clips(encoding)):
            self._models.load(clip)
        self.timing.load = self._span("load", started, None)

    def _step(self) -> Step:
        step = self._process.next_step()
        if step is None:
            raise RuntimeError("the program has more evaluations than the sampler")
        return step

    def _run_segment(self, name: str) -> None:
        number, segment = self._segments[name]
        if self._values is None:
            self._values = Values(self._before, self._slots)
            self._values.put((self.program.region.begin.id,), (self._step(),))
        for call in segment.calls:
            self._call(call, self._operations[number], self._values)

    def _advance(self, step: Step) -> None:
        """Hand the prediction to the sampler and what is carried to the next evaluation."""
        variant, values = self._variant[step.index], self._values
        assert values is not None  # an evaluation has at least one segment
        prediction = values.resolve(variant.prediction)
        self._check_finite(prediction, step)
        self._slots = {slot: values.resolve(value) for slot, value in variant.carried.items()}
        self._values = None
        self._process.advance(prediction)

    def _call(self, call: Call, operations: Mapping[str, Operation], values: Values) -> None:
        members = [operations[name] for name in call.operations]
        inputs = {name: values.gather([member.inputs.get(name) for member in members]) for name in members[0].inputs}
        outputs = self._run_node(members[0], inputs) if call.stage == NODE else STAGES[call.stage](self._situation, inputs)
        values.put(call.operations, outputs)

    def _run_node(self, operation: Operation, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """A node without a stage runs itself. It cannot be replaced by a graph here: the program is already made."""
        assert operation.run is not None
        outputs = operation.run(self._context, inputs)
        if isinstance(outputs, Expansion):
            raise InputError(f"node {operation.id} ({operation.type}): expands to a graph, which a node inside a step region cannot do")
        return tuple(outputs)

    def _span(self, name: str, started: float, evaluation: int | None) -> float:
        seconds = time.perf_counter() - started
        self.timing.spans.append(Span(name, started, seconds, evaluation))
        return seconds

    def _check_finite(self, prediction: Any, step: Step) -> None:
        if not isinstance(prediction, Tensor):
            raise InputError(f"node {self.program.name}: StepEnd's prediction is a {type(prediction).__name__}, expected a tensor")
        if not torch.isfinite(prediction).all():
            raise RunError(
                f"node {self.program.name}: the latent became NaN or infinite in step {step.step + 1} "
                f"(evaluation {step.index + 1} of {len(self.program.schedule)}); try another dtype, VAE or a lower guidance"
            )
