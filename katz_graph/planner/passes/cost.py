"""Pass *cost*: counts floating-point operations and bytes of every operation, independent of any
device; `Device.cost` converts them to time. Also sets value sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from katz_graph.core.recipe import ControlNetRecipe, Encoding, ModelRecipe, References, digest
from katz_graph.ir.device import Work
from katz_graph.ir.program import Program
from katz_graph.ir.region import CROP, Operation, Previous, Ref
from katz_graph.models.configuration import config
from katz_graph.models.costs.counts import Counts
from katz_graph.models.family import family_of
from katz_graph.models.stages import Extent
from katz_graph.models.text.recipe import clips, prompts
from katz_graph.planner.region import stage_of
from katz_graph.planner.simulation.views import Views

Count = Callable[..., Work]
Length = Callable[[Encoding], int]
Unprepared = Callable[[Operation], tuple[str, ...]]


def all_prepared(operation: Operation) -> tuple[str, ...]:
    """Returns no unprepared blocks."""
    return ()


def cost(
    program: Program,
    shape: tuple[int, ...],
    count: Count,
    length: Length,
    unprepared: Unprepared = all_prepared,
) -> Program:
    """Sets `work`, `held`, `keys`, `rows`, `shape`, `cells`, `tokens` and, for GPUs, `unprepared`.

    `count(operation, latent shape, tokens, references=cells)` returns an operation's work.
    `length(text)` returns the number of tokens, `unprepared(operation)` the module blocks that run
    their library's forward.
    """
    before = {op.id: op for op in program.before}
    lengths = {
        op.id: length(op.inputs["encoding"]) for op in program.before if stage_of(op).encodes_text
    }

    def text_tokens(operation: Operation) -> int:
        text = operation.inputs.get("text")
        return lengths.get(text.operation if isinstance(text, Ref) else operation.id, 0)

    operations = {op.id: op for variant in program.variants for op in variant.operations} | before
    tokens = {name: text_tokens(operation) for name, operation in operations.items()}
    cells = _cells(program, shape)
    rows = {
        name: 1 if stage_of(op).encodes_text or stage_of(op).chained else shape[0]
        for name, op in operations.items()
    }

    seen = {name: _references(operation, before) for name, operation in operations.items()}
    for name, references in seen.items():
        if references and _sees_pictures(operations[name], before):
            # its vision tokens: one for 2 x 2 cells
            tokens[name] = max(0, tokens[name] - sum(map(prod, references)) // 4)
    sized = replace(program, shape=shape, tokens=tokens, cells=cells, rows=rows)
    value_bytes = program.target.devices[0].value_bytes if program.target.devices else EXACT

    def extent(name: str, batch: int) -> Extent:
        sizes = batch, *sized.shape_at(name)[1:]
        return Extent(sizes, tokens[name], value_bytes, seen[name])

    def counted(name: str, batch: int) -> Work:
        one = extent(name, batch)
        further = {"references": one.references} if one.references else {}
        return count(operations[name], one.shape, one.tokens, **further)

    work = {name: counted(name, 1 if rows[name] == 1 else shape[0]) for name in operations}
    held = {
        operation.id: declared.held(operation.inputs, extent(operation.id, 1))
        for operation in program.before
        if (declared := stage_of(operation)).held is not None
    }
    sizes = {name: (*sized.shape_at(name)[1:], tokens[name], seen[name]) for name in operations}
    keys = {
        name: _key(operation, sizes[name], work[name] if rows[name] == 1 else counted(name, 1))
        for name, operation in operations.items()
    }
    reasons = (
        {name: found for name, one in operations.items() if (found := unprepared(one))}
        if any(device.is_gpu for device in program.target.devices)
        else {}
    )
    return replace(sized, work=work, keys=keys, held=held, unprepared=reasons)


def _references(
    operation: Operation, before: Mapping[str, Operation]
) -> tuple[tuple[int, int], ...]:
    """Returns the cells of the references before the picture that an operation reads."""
    model, fixed = operation.inputs.get("model"), operation.inputs.get("fixed")
    if not isinstance(model, ModelRecipe) or not isinstance(fixed, Ref):
        return ()
    if family_of(model.network).network.prefix is None:
        return ()
    seen: References | None = before[fixed.operation].inputs["references"]
    latents = () if seen is None else seen.latents
    return tuple((one.pixels.shape[-2], one.pixels.shape[-1]) for one in latents)


def _sees_pictures(operation: Operation, before: Mapping[str, Operation]) -> bool:
    """Returns whether an operation reads a text whose encoder saw pictures."""
    text = operation.inputs.get("text")
    made = before.get(text.operation) if isinstance(text, Ref) else None
    return made is not None and any(one.pictures for one in prompts(made.inputs["encoding"]))


def _key(operation: Operation, sizes: tuple[Any, ...], work: Work) -> str:
    """Returns a key that is the same for equal work, regardless of weights and of the number of
    rows. It includes the counted `work` of one row, which depends on configuration and dtype.
    """
    if work == Work():
        return ""
    inputs = operation.inputs
    blocks = inputs.get("first_block", 0), inputs.get("last_block", -1)
    residuals = sum(
        name.startswith("residuals_") and value is not None for name, value in inputs.items()
    )
    patches = _patches(inputs)
    return f"{operation.stage}:{digest((sizes, blocks, residuals, patches, work))[:16]}"


def _patches(inputs: Mapping[str, object]) -> tuple[str, ...]:
    model = inputs.get("model")
    return (
        tuple(type(patch).__name__ for patch in model.patches)
        if isinstance(model, ModelRecipe)
        else ()
    )


def _cells(program: Program, shape: tuple[int, ...]) -> dict[str, tuple[int, int]]:
    """Returns each operation's latent height and width: those of the part after a StepCrop, else of
    the whole latent.
    """
    cells = {
        op.id: op.inputs["cells"] for op in program.before if op.inputs.get("cells") is not None
    }
    views = Views(program)
    for variant in program.variants:
        for operation in variant.operations:
            part = views.part(operation, variant)
            cells[operation.id] = part.cells if part else (shape[-2], shape[-1])
    return cells


def count_work(
    operation: Operation,
    shape: tuple[int, ...],
    tokens: int,
    value_bytes: int,
    counts: Counts,
    references: tuple[tuple[int, int], ...] = (),
) -> Work:
    """Counts the work of one operation for a latent of this shape, a text of `tokens` tokens and
    `references` of these cells; none if it is negligible.

    Raises InputError for an undeclared stage.
    """
    extent = Extent(shape, tokens, value_bytes, references)
    return stage_of(operation).count(operation.inputs, extent, counts) or Work()


def unprepared_blocks(operation: Operation, counts: Counts) -> tuple[str, ...]:
    """Returns the blocks of an operation's modules that run their library's forward on GPUs."""
    stage = stage_of(operation)
    match operation.inputs.get(stage.module):
        case ModelRecipe(network=part) | ControlNetRecipe(control_net=part):
            parts = [part]
        case encoding if encoding is not None and stage.encodes_text:
            parts = [one.encoder for clip in clips(encoding) for one in clip.encoders]
        case _:
            parts = []
    found = (blocks for part in dict.fromkeys(parts) for blocks in counts.unprepared(config(part)))
    return tuple(dict.fromkeys(found))


EXACT = 4  # bytes of a float32, for the sampler's latents and the predictions


class ValueSizes:
    """Computes the bytes of the values of a program whose `work`, `shape` and `cells` are known.
    Raises InputError for an undeclared stage.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._begin = program.region.begin.id
        self._model_bytes = max(
            (device.value_bytes for device in program.target.devices), default=EXACT
        )
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
        if operation is None or operation.type == CROP:  # a whole step or a part
            return self._step(ref.operation)
        output = self._program.work[operation.id].output_bytes
        match stage_of(operation).output(ref.output):
            case "state":  # features contain the step
                return output + (self._features(operation) or self._step(operation.id))
            case "hidden":  # like its input, and at most the input's skips
                return max(output, self._features(operation))
            case "counted":
                return output
            case "prediction":
                return self._latent(operation.id) * EXACT

    def _features(self, operation: Operation) -> float:
        value = operation.inputs.get("features")
        if isinstance(value, Previous):
            carried = (variant.carried.get(value.slot) for variant in self._program.variants)
            value = next(
                (
                    found
                    for found in carried
                    if isinstance(found, Ref) and found.operation != operation.id
                ),
                None,
            )
        return self.of(value) if isinstance(value, Ref) else 0.0

    def _step(self, name: str) -> float:
        return self._latent(name) * (EXACT + self._model_bytes)

    def _latent(self, name: str) -> float:
        return float(prod(self._program.shape_at(name)))
