"""Pass *late*: finds LoRAs that the first steps may do without, where that is allowed.

The first steps lay out the picture, and most LoRAs change little there (Katz, section 6), so those
steps run while the files are still being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from katz_graph.adapters.recipes import loras_of
from katz_graph.approximations import lora_bound
from katz_graph.ir.program import LateLoras, Program
from katz_graph.ir.region import Operation
from katz_graph.planner.queries import adapters
from katz_graph.recipe import FileIdentity, ModelRecipe

Profiled = Callable[[ModelRecipe, FileIdentity], float | None]
"""Returns the noise level down to which a LoRA changes little on a model; None if nobody looked."""


def late(program: Program, profiled: Profiled) -> Program:
    """Fills `late` with the LoRAs that steps may begin without: as many steps as a person said, or
    down to the noise level that was found for it. At least the last step has them all.
    """
    allowed, steps = lora_bound(program.target.allowed)
    if not allowed or not program.schedule:
        return program
    model: ModelRecipe = program.region.begin.inputs["model"]
    waits = {file: _waits(program, steps, profiled(model, file)) for file in adapters(program)}
    files = tuple(file for file, evaluation in waits.items() if evaluation > 0)
    if not files:
        return program
    return replace(
        program,
        late=LateLoras(
            files,
            tuple(waits[file] for file in files),
            tuple(_taking(file, program.before) for file in files),
        ),
    )


def _waits(program: Program, steps: int | None, sigma: float | None) -> int:
    """Returns the first evaluation that has to have a LoRA."""
    last = program.schedule[-1].step
    for point in program.schedule:
        profiled = sigma is not None and point.sigma >= sigma
        needs = not profiled if steps is None else point.step >= steps
        if needs or point.step == last:
            return point.index
    raise AssertionError  # the last point is of the last step


def _taking(file: FileIdentity, before: Iterable[Operation]) -> tuple[str, ...]:
    """Returns the operations before the loop that take a LoRA, themselves or from others; they are
    in topological order.
    """
    found: dict[str, None] = {}
    for operation in before:
        own = any(
            lora.file == file for value in operation.inputs.values() for lora in loras_of(value)
        )
        if own or any(ref.operation in found for _, ref in operation.references()):
            found[operation.id] = None
    return tuple(found)
