"""Finds the declaration of a stage by name among all families of models. Never imports torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from katz_graph.core.errors import InputError
from katz_graph.models.families.shared.stages import STAGES
from katz_graph.models.families.shared.transformer_stages import STAGES as TRANSFORMERS
from katz_graph.models.family import ModelFamily, families
from katz_graph.models.stages import NODE, Stage, uncounted


def stage(name: str) -> Stage:
    """Returns the declaration of a stage. Raises InputError for an unknown stage."""
    found = stages().get(name)
    if found is None:
        raise InputError(f"the stage {name!r} is unknown: no family of models declares it")
    return found


@lru_cache(maxsize=1)
def stages() -> dict[str, Stage]:
    """Returns all declarations, in the order of their families, which is the display order. Only
    `register_stages` changes the mapping.
    """
    of_families = (one for family in families() for one in family.stages)
    return _merged(
        (Stage(NODE, uncounted, gives=("prediction",)), *of_families, *TRANSFORMERS, *STAGES)
    )


def text_arguments(of: Stage) -> dict[str, str]:
    """Maps hoisted arguments computed from encoded text to the stages that compute them."""
    return {name: made_by for name, made_by in of.hoists.items() if stage(made_by).reads_text}


def stage_groups() -> Mapping[str, tuple[str, ...]]:
    """Maps groups to the names of their stages."""
    found: dict[str, tuple[str, ...]] = {}
    for one in stages().values():
        if one.group:
            found[one.group] = (*found.get(one.group, ()), one.name)
    return found


def register_family(family: ModelFamily) -> None:
    """Adds a family and its stages. For an existing stage, raises ValueError without any change."""
    register_stages(family.stages)
    families().append(family)


def register_stages(declared: Iterable[Stage]) -> None:
    """Adds stages. For an existing name, raises ValueError without any change."""
    stages().update(_merged((*stages().values(), *declared)))


def _merged(declared: Iterable[Stage]) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for one in declared:
        if found.setdefault(one.name, one) is not one:
            raise ValueError(f"the stage {one.name!r} is declared twice")
    return found
