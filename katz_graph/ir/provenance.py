"""Records the approximations that produced a result, and decides which runs may reuse it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from katz_graph.ir.region import SimilarStart

STALE_CONTROLNET, ASYNC_LORA, CACHED_EDIT = "stale-controlnet", "async-lora", "cached-edit"
SIMILAR_START = "similar-start"


def lora_bound(allowed: Iterable[str]) -> tuple[bool, int | None]:
    """Returns whether steps may run without LoRAs, and the smallest maximum number of such steps
    that the user gave, if any.
    """
    mine = [one.partition("=") for one in allowed if one.partition("=")[0] == ASYNC_LORA]
    return bool(mine), min((int(number) for _, _, number in mine if number), default=None)


@dataclass(frozen=True, slots=True)
class Provenance:
    """Records facts about a result that its inputs do not determine. It is stored with the result
    and applies to everything derived from it.
    """

    stale_controlnet: bool = False
    # path of each LoRA that evaluations ran without -> the first evaluation with it
    arrivals: Mapping[str, int] = field(default_factory=dict)
    steps_without: int = 0  # upper bound on the steps that ran without all LoRAs
    by_profile: bool = False  # a profile, not the user, limited these steps
    # the job's choices of placement and execution
    chosen: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""  # name of the template whose activations layers read
    similar: tuple[SimilarStart, ...] = ()  # the pictures from which samplers began

    @property
    def approximations(self) -> tuple[str, ...]:
        """Returns the names of the approximations in force; none for an exact result."""
        in_force = {
            ASYNC_LORA: self.arrivals,
            STALE_CONTROLNET: self.stale_controlnet,
            CACHED_EDIT: self.template,
            SIMILAR_START: self.similar,
        }
        return tuple(name for name, used in in_force.items() if used)

    @property
    def deferred_loras(self) -> dict[str, int]:
        """Returns `arrivals` with file names in place of paths."""
        return {PurePath(path).name: first for path, first in self.arrivals.items()}

    def permitted(self, allowed: Iterable[str]) -> bool:
        """Returns whether a run with these allowed approximations may reuse the result."""
        names = frozenset(allowed)
        deferred, steps = lora_bound(names)
        enough = self.by_profile if steps is None else self.steps_without <= steps
        return (
            (not self.arrivals or (deferred and enough))
            and (not self.stale_controlnet or STALE_CONTROLNET in names)
            and (not self.template or CACHED_EDIT in names)
            and (not self.similar or SIMILAR_START in names)
        )

    def __str__(self) -> str:
        loras = self.deferred_loras.items()
        deferred = ", ".join(f"{name} from evaluation {first} on" for name, first in loras)
        return ", ".join(
            f"{name} ({deferred})" if name == ASYNC_LORA else name for name in self.approximations
        )


EXACT = Provenance()


def joined(found: Iterable[Provenance]) -> Provenance:
    """Returns the provenance of a result derived from several results."""
    parts = [one for one in found if one != EXACT]
    if len(parts) < 2:
        return parts[0] if parts else EXACT
    arrivals: dict[str, int] = {}
    for one in parts:
        for path, evaluation in one.arrivals.items():
            arrivals[path] = max(evaluation, arrivals.get(path, 0))
    deferred = [one for one in parts if one.arrivals]
    return Provenance(
        any(one.stale_controlnet for one in parts),
        arrivals,
        max((one.steps_without for one in deferred), default=0),
        bool(deferred) and all(one.by_profile for one in deferred),
        {name: value for one in parts for name, value in one.chosen.items()},
        ", ".join(dict.fromkeys(one.template for one in parts if one.template)),
        tuple(dict.fromkeys(start for one in parts for start in one.similar)),
    )
