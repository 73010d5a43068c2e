"""Resolves the inputs and outputs of every operation in every evaluation, once for all placements.
Also shortens repeating patterns. Used by the simulator and the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from katz_graph.core.recipe import ModelRecipe
from katz_graph.ir.program import Instance, Instances, Program
from katz_graph.ir.region import Previous, Ref
from katz_graph.planner.passes.cost import ValueSizes
from katz_graph.planner.queries import WeightSwitch, switches, weight_sets

LONGEST_BLOCK = 8  # maximum number of evaluations in one block of a repeating pattern
SIMULATED_REPEATS, STEADY_REPEATS = 12, 4
"""Numbers of a pattern's repeats that are simulated, and of the last ones to extrapolate from. Used
if evaluations read values of earlier ones, because the pipeline takes a while to fill.
"""


@dataclass(frozen=True, slots=True)
class EvaluationUse:
    """Describes one evaluation: the number of its variant, and the instance numbers of each
    operation's inputs and outputs, of the step and of the prediction.
    """

    evaluation: int
    variant: int
    reads: Mapping[str, tuple[int, ...]]
    makes: Mapping[str, tuple[int, ...]]
    step: tuple[int, ...]
    prediction: int


class Flow:
    """Numbers the instances of a program; `sizes` in bytes. Independent of devices."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.numbers: dict[Instance, int] = {}
        self.sizes: list[float] = []
        self._value_sizes = ValueSizes(program)
        self._made: dict[tuple[str, int | None], list[int]] = {}
        instances, begin = Instances(program), program.region.begin.id
        numbers = {
            index: number
            for number, variant in enumerate(program.variants)
            for index in variant.evaluations
        }
        read_before = {
            op.id: self._numbers([Instance(ref, None) for _, ref in op.references()])
            for op in program.before
        }
        reads: list[dict[str, tuple[int, ...]]] = []
        predictions: list[int] = []
        evaluations = sorted(numbers)
        for index in evaluations:
            variant = program.variants[numbers[index]]
            reads.append({})
            for operation in variant.operations:
                values = (
                    value
                    for value in operation.inputs.values()
                    if isinstance(value, (Ref, Previous))
                )
                found = (instances.of(value, index) for value in values)
                reads[-1][operation.id] = self._numbers(
                    [one for one in found if isinstance(one, Instance)]
                )
            predictions.extend(self._numbers([instances.of(variant.prediction, index)]))
        self.before_reads: Mapping[str, tuple[int, ...]] = read_before
        self.before_makes: Mapping[str, tuple[int, ...]] = {
            op.id: tuple(self._made.get((op.id, None), ())) for op in program.before
        }
        self.moments: tuple[EvaluationUse, ...] = tuple(
            EvaluationUse(
                index,
                numbers[index],
                reads[place],
                {name: tuple(self._made.get((name, index), ())) for name in reads[place]},
                tuple(self._made.get((begin, index), ())),
                predictions[place],
            )
            for place, index in enumerate(evaluations)
        )
        self.instances: tuple[Instance, ...] = tuple(self.numbers)
        self.patched: Mapping[str, str] = self._patched()
        self.switches: Mapping[str, WeightSwitch] = switches(program)

    def _numbers(self, found: Sequence[Instance]) -> tuple[int, ...]:
        for instance in found:
            if instance not in self.numbers:
                self.numbers[instance] = len(self.sizes)
                self.sizes.append(self._value_sizes.of(instance.ref))
                self._made.setdefault((instance.ref.operation, instance.evaluation), []).append(
                    self.numbers[instance]
                )
        return tuple(dict.fromkeys(self.numbers[instance] for instance in found))

    def _patched(self) -> Mapping[str, str]:
        """Returns operation -> the weight set that it needs, for models with LoRAs."""
        names = {model: name for name, model in weight_sets(self.program).items()}
        operations = (
            [op for variant in self.program.variants for op in variant.operations] if names else []
        )
        models = {op.id: op.inputs.get("model") for op in operations}
        return {
            name: names[model]
            for name, model in models.items()
            if isinstance(model, ModelRecipe) and model.loras
        }


@dataclass(frozen=True, slots=True)
class Repeats:
    """Replaces `further` repeats of a pattern by an extrapolation from `times` simulated ones:
    evaluations `first` to `last` of the shortened program.
    """

    first: int
    last: int
    times: int
    further: int


def shortened(program: Program) -> tuple[Program, tuple[Repeats, ...]]:
    """Returns the program with only a few repeats of every repeating pattern of variants, and the
    omitted repeats. An omitted repeat takes as long as the last retained ones.

    If no value passes between evaluations, each starts with all devices idle. Repeats after the
    first then take equal time, so two suffice.
    """
    carried = any(variant.carried for variant in program.variants)
    most, steady = (SIMULATED_REPEATS, STEADY_REPEATS) if carried else (2, 1)
    numbers = {
        index: number
        for number, variant in enumerate(program.variants)
        for index in variant.evaluations
    }
    kinds = [numbers[index] for index in sorted(numbers)]
    order: list[int] = []
    repeats: list[Repeats] = []
    place = 0
    while place < len(kinds):
        length, times = _pattern(kinds[place:])
        order += kinds[place : place + length] * min(times, most)
        if times > most:
            repeats.append(
                Repeats(len(order) - steady * length, len(order) - 1, steady, times - most)
            )
        place += length * times
    variants = tuple(
        replace(
            variant, evaluations=tuple(index for index, kind in enumerate(order) if kind == number)
        )
        for number, variant in enumerate(program.variants)
    )
    return replace(program, variants=variants), tuple(repeats)


def _pattern(kinds: Sequence[int]) -> tuple[int, int]:
    """Returns the block length and number of repeats of the longest repetition at the beginning. If
    several are equally long, takes the one with the shortest block.
    """
    best = (1, 1)
    for length in range(1, min(LONGEST_BLOCK, len(kinds) // 2) + 1):
        times = 1
        while list(kinds[times * length : (times + 1) * length]) == list(kinds[:length]):
            times += 1
        if times > 1 and length * times > best[0] * best[1]:
            best = (length, times)
    return best
