"""Says what carries out stages on a device, and how it counts calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from katz_graph.models.stages import Outputs, Stage

AS_DECLARED = "computed as declared"


class StageCall(NamedTuple):
    """Holds a call that can be carried out: a stage, the live module, and what it is given."""

    stage: Stage
    module: Any
    given: Mapping[str, Any]


@dataclass(slots=True)
class ComputeUse:
    """Counts calls of stages since the worker started. `captures`: that were recorded, `replays`:
    that a recording carried out, `beside`: that ran on two streams at once, `drops`: how often all
    recordings were dropped for want of room, `eager`: the others, by the reason; `bytes` that
    recordings take.
    """

    captures: int = 0
    replays: int = 0
    beside: int = 0
    drops: int = 0
    bytes: int = 0
    eager: dict[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> Counter[str]:
        """Returns how many were recorded, replayed, beside others, and eager."""
        eager = sum(self.eager.values())
        return Counter(
            recorded=self.captures, replayed=self.replays, beside=self.beside, eager=eager
        )

    def count_eager(self, reason: str) -> None:
        self.eager[reason] = self.eager.get(reason, 0) + 1


class Computing(Protocol):
    """Computes a stage with a live module from what it is given, see
    `katz_graph.models.stages.Compute`.
    """

    use: ComputeUse

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs: ...

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        """Computes one call, or two of which neither reads what the other makes."""

    def drop(self) -> None:
        """Gives back the memory that it keeps for the next calls."""

    def forget(self, module: Any) -> None:
        """Is told that a module goes."""


class Eagerly:
    """Implements `Computing`: call by call, as stages are declared."""

    def __init__(self) -> None:
        self.use = ComputeUse()

    def __call__(self, stage: Stage, module: Any, given: Mapping[str, Any]) -> Outputs:
        self.use.count_eager(AS_DECLARED)
        return stage.computed(module, given)

    def together(self, calls: Sequence[StageCall]) -> list[Outputs]:
        return [self(*call) for call in calls]

    def drop(self) -> None:
        """Does nothing: it keeps no memory."""

    def forget(self, module: Any) -> None:
        """Does nothing: it keeps nothing of modules."""
