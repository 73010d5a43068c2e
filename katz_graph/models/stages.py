"""Declares what a stage is: a computation of the denoising loop, or of what precedes it, that is counted, placed and drawn as one.

A model family declares its stages; the planner, `--place`, plans and the executor read the declarations and hold no lists of names. Knows
nothing of programs and models. Never imports torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from katz_graph.errors import InputError

if TYPE_CHECKING:
    from katz_graph.models.counts import Counts
    from katz_graph.planner.program import Work

NODE = "node"  # the stage of a node that has none: its own `run` is called

Gives = Literal["counted", "state", "hidden", "prediction"]
"""What an output is, which says how many bytes a link carries of it: what the count of the work says; that and the step or state that was
read; a hidden state like the one that was read; a prediction, which is like the latent."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How large the call of a stage is: `shape` of the latent [B, C, h, w] that it sees, `tokens` of its text, bytes of a value."""

    shape: tuple[int, ...]
    tokens: int
    value_bytes: int


Count = Callable[[Mapping[str, Any], Extent, "Counts"], "Work | None"]
"""The work of a call by the inputs of its operation; None is next to nothing."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`costed`: it takes long enough to be placed and drawn, and to share calls; others stand where they are read. `hoists`: its arguments
    that depend on no step -> the stage that computes each once a request. `stands_for`: stages that it does as one, where a patch wraps
    them. `holds_weights`: its weights count as memory (others read what one of these holds). `may_lag`: it may read the evaluation before
    the one that reads it. `encodes_text`, `reads_text`: it computes from a prompt, or from encoded text. `placeable`, `group`: whether
    `--place` takes its name, and the name of several. `label`, `colour`: of a costed stage in pictures of plans.
    """

    name: str
    count: Count
    gives: tuple[Gives, ...] = ("counted",)
    costed: bool = False
    hoists: Mapping[str, str] = field(default_factory=dict)
    stands_for: tuple[str, ...] = ()
    holds_weights: bool = False
    may_lag: bool = False
    encodes_text: bool = False
    reads_text: bool = False
    placeable: bool = False
    group: str = ""
    label: str = ""
    colour: str = ""

    def output(self, number: int) -> Gives:
        return self.gives[min(number, len(self.gives) - 1)]


def uncounted(inputs: Mapping[str, Any], extent: Extent, counts: Counts) -> None:
    """Of what computes next to nothing beside a network, and of what nobody knows: a pack's node."""


def stage(name: str) -> Stage:
    """The declaration. InputError for a stage that no family has."""
    found = stages().get(name)
    if found is None:
        raise InputError(f"the stage {name!r} is unknown: no family of models declares it")
    return found


def stages() -> Mapping[str, Stage]:
    """All, in the order of their families, which is the order in which people see them."""
    return _declared()


def stage_groups() -> Mapping[str, tuple[str, ...]]:
    """Names for several stages -> those."""
    found: dict[str, tuple[str, ...]] = {}
    for one in stages().values():
        if one.group:
            found[one.group] = (*found.get(one.group, ()), one.name)
    return found


def register(declared: Iterable[Stage]) -> None:
    """Add a family's. ValueError for a name that there is."""
    for one in declared:
        if one.name in _declared():
            raise ValueError(f"the stage {one.name!r} is declared twice")
        _declared()[one.name] = one


@lru_cache(maxsize=1)
def _declared() -> dict[str, Stage]:
    from katz_graph.models.families import FAMILIES

    modules = [importlib.import_module(f"katz_graph.models.families.{family}.stages") for family in FAMILIES]
    return {NODE: Stage(NODE, uncounted, gives=("prediction",))} | {one.name: one for module in modules for one in module.STAGES}
