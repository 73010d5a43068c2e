"""Creates small pipelines, ControlNets and LoRAs with random weights, for each model kind that a
family's `random_models` module lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from katz_graph.models.families import FAMILIES

if TYPE_CHECKING:
    from katz_graph.models.families.shared.random_parts import Role

Kind = str


@cache
def kinds() -> Mapping[Kind, Any]:
    """Returns the factory of each model kind, by name. A factory's methods define its size
    arguments.
    """
    names = [f"katz_graph.models.families.{family}.random_models" for family in FAMILIES]
    modules = [import_module(name) for name in names if find_spec(name) is not None]
    return {kind: made for module in modules for kind, made in module.KINDS.items()}


def playing(role: Role) -> tuple[Kind, ...]:
    """Returns the names of the kinds with a role in benches."""
    return tuple(kind for kind, made in kinds().items() if role in made.roles)


def usual_kind() -> Kind:
    """Returns the name of the kind that benches measure by default."""
    (kind,) = playing("usual")
    return kind


def usual() -> Any:
    """Returns the factory of the default kind."""
    return kinds()[usual_kind()]


def make_pipeline(folder: str | Path, kind: Kind, seed: int, *sizes: Any, **changed: Any) -> None:
    """Writes a pipeline in diffusers' folder layout."""
    kinds()[kind].make_pipeline(folder, seed, *sizes, **changed)


def make_controlnet(folder: str | Path, kind: Kind, seed: int, *sizes: Any, **changed: Any) -> None:
    """Writes a ControlNet that fits the network of `make_pipeline`."""
    kinds()[kind].make_controlnet(folder, seed, *sizes, **changed)


def make_lora(path: str | Path, kind: Kind, *sizes: Any, **changed: Any) -> None:
    """Writes a LoRA for the network of `make_pipeline`."""
    kinds()[kind].make_lora(path, *sizes, **changed)


def draw_network(kind: Kind, seed: int, *sizes: Any, **changed: Any) -> Any:
    """Creates only a network; transformer kinds only."""
    return kinds()[kind].draw_network(seed, *sizes, **changed)


def draw_controlnet(kind: Kind, seed: int, *sizes: Any, **changed: Any) -> Any:
    """Creates only a ControlNet; transformer kinds only."""
    return kinds()[kind].draw_controlnet(seed, *sizes, **changed)
