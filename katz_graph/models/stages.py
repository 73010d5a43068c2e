"""Declares what a stage is: a computation of the denoising loop, or of what precedes it, that is counted, placed and drawn as one.

A model family declares its stages; the planner, `--place` and pictures of plans read the declarations and hold no lists of names. What
computes them, and what counts them, still does. Knows nothing of programs and models. Never imports torch.
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
"""How many bytes a link carries of an output. `counted`: those that the work counts; `state`: these and the step or state that was read;
`hidden`: as many as of the hidden state that was read; `prediction`: as many as of the latent."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How large the call of a stage is: `shape` of the latent [B, C, h, w] that it sees, `tokens` of its text, bytes of a value."""

    shape: tuple[int, ...]
    tokens: int
    value_bytes: int


Count = Callable[[Mapping[str, Any], Extent, "Counts"], "Work | None"]
"""Returns the work of one call from the inputs of its operation, or None if it is negligible."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`costed`: it takes long enough to be placed and drawn, and to share calls; others run on the device that reads them. `hoists`: its
    arguments that depend on no step -> the stage that computes each once a request. `stands_for`: stages that it does as one, where a patch
    wraps them. `last_block_gives`: its output that is there only when its range of blocks reaches the last. `holds_weights`: its weights
    count as memory; False where another stage of the module counts them. `may_lag`: its output may come from the evaluation before
    (stale-controlnet). `encodes_text`, `reads_text`: it computes from a prompt, or from encoded text. `placeable`, `group`: whether
    `--place` takes its name, and the name of several. `label`, `colour`: of a costed stage in pictures of plans.
    """

    name: str
    count: Count
    gives: tuple[Gives, ...] = ("counted",)
    costed: bool = False
    hoists: Mapping[str, str] = field(default_factory=dict)
    stands_for: tuple[str, ...] = ()
    last_block_gives: int | None = None
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
    """Counts no work: for stages that are negligible beside a network, and for nodes of packs, whose work is unknown."""


def stage(name: str) -> Stage:
    """The declaration. InputError for a stage that no family has."""
    found = stages().get(name)
    if found is None:
        raise InputError(f"the stage {name!r} is unknown: no family of models declares it")
    return found


@lru_cache(maxsize=1)
def stages() -> dict[str, Stage]:
    """All, in the order of their families, which is the order in which people see them. Only `register` changes it."""
    from katz_graph.models.families import FAMILIES

    modules = [importlib.import_module(f"katz_graph.models.families.{family}.stages") for family in FAMILIES]
    return _merged((Stage(NODE, uncounted, gives=("prediction",)), *(one for module in modules for one in module.STAGES)))


def text_arguments(of: Stage) -> dict[str, str]:
    """Of what it hoists, the arguments that are computed from an encoded text -> the stages that compute them."""
    return {name: made_by for name, made_by in of.hoists.items() if stage(made_by).reads_text}


def stage_groups() -> Mapping[str, tuple[str, ...]]:
    """Names for several stages -> those."""
    found: dict[str, tuple[str, ...]] = {}
    for one in stages().values():
        if one.group:
            found[one.group] = (*found.get(one.group, ()), one.name)
    return found


def register(declared: Iterable[Stage]) -> None:
    """Add a family's. ValueError, and nothing is added, for a name that there is."""
    stages().update(_merged((*stages().values(), *declared)))


def _merged(declared: Iterable[Stage]) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for one in declared:
        if found.setdefault(one.name, one) is not one:
            raise ValueError(f"the stage {one.name!r} is declared twice")
    return found
