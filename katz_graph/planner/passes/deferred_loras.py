"""Pass *late*: finds the LoRAs that the first steps may run without, if that approximation is
allowed.

The first steps lay out the picture, and most LoRAs change little there (Katz, section 6). These
steps can therefore run while the files are still being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from katz_graph.adapters.recipes import LoraUse, loras_of
from katz_graph.core.recipe import FileIdentity, ModelRecipe
from katz_graph.ir.program import DeferredLoras, EvaluationPoint, Program
from katz_graph.ir.provenance import lora_bound
from katz_graph.ir.region import Operation
from katz_graph.planner.queries import lora_strengths
from katz_graph.planner.region import stage_of

Profiled = Callable[[ModelRecipe, LoraUse, float], float | None]
"""Returns the noise level down to which a LoRA has little effect on a model, for a sampler that
starts at the given level; None if not measured.
"""


HasTextWeights = Callable[[FileIdentity], bool]
"""Returns whether a LoRA file may contain weights for text encoders."""


def no_profile(model: ModelRecipe, use: LoraUse, begins: float) -> None:
    """Returns None: not measured."""


def defer_loras(program: Program, profiled: Profiled, taken_by_texts: HasTextWeights) -> Program:
    """Sets `deferred_loras` to the LoRAs that steps may run without. Uses the user's number of
    steps, or the measured noise level of each LoRA. At least the last step has all LoRAs.
    """
    allowed, steps = lora_bound(program.target.allowed)
    if not allowed or not program.schedule:
        return program
    model: ModelRecipe = program.region.begin.inputs["model"]
    waits = {
        file: _waits(program, steps, profiled(model, use, program.schedule[0].sigma))
        for file, use in lora_strengths(program).items()
    }
    files = tuple(file for file, evaluation in waits.items() if evaluation > 0)
    if not files:
        return program
    return replace(
        program,
        deferred_loras=DeferredLoras(
            files,
            tuple(waits[file] for file in files),
            tuple(_taking(file, program.before, taken_by_texts(file)) for file in files),
        ),
    )


def _waits(program: Program, steps: int | None, level: float | None) -> int:
    """Returns the first evaluation that requires a LoRA. `level` is the lowest noise level at which
    a step without the LoRA may end.
    """
    ends = step_ends(program.schedule)
    for point in program.schedule:
        profiled = level is not None and ends.get(point.step, 0.0) >= level
        needs = not profiled if steps is None else point.step >= steps
        if needs or point.step not in ends:
            return point.index
    raise AssertionError  # unreachable: the last step is not in `ends`


def step_ends(schedule: Sequence[EvaluationPoint]) -> dict[int, float]:
    """Returns each step's last noise level, which is the first of the next step. Omits the last
    step.
    """
    begins: dict[int, float] = {}
    for point in schedule:
        begins.setdefault(point.step, point.sigma)
    return dict(zip(begins, [*begins.values()][1:], strict=False))


def _taking(file: FileIdentity, before: Iterable[Operation], by_texts: bool) -> tuple[str, ...]:
    """Returns the operations before the loop that use a LoRA, directly or through their inputs, in
    topological order. Text encoders use it only if it has weights for them.
    """
    found: dict[str, None] = {}
    for operation in before:
        own = any(
            lora.file == file for value in operation.inputs.values() for lora in loras_of(value)
        )
        own &= by_texts or not stage_of(operation).encodes_text
        if own or any(ref.operation in found for _, ref in operation.references()):
            found[operation.id] = None
    return tuple(found)
