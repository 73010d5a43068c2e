"""Makes small pipelines, ControlNets and LoRAs with random weights, in the shapes of all kinds of
models that the `random_models` of the families list.
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
    """Returns what makes each kind, by name; its methods say which sizes they take."""
    names = [f"katz_graph.models.families.{family}.random_models" for family in FAMILIES]
    modules = [import_module(name) for name in names if find_spec(name) is not None]
    return {kind: made for module in modules for kind, made in module.KINDS.items()}


def playing(role: Role) -> tuple[Kind, ...]:
    """Names the kinds that benches take for something."""
    return tuple(kind for kind, made in kinds().items() if role in made.roles)


def usual_kind() -> Kind:
    """Names the kind that benches measure unless they say otherwise."""
    (kind,) = playing("usual")
    return kind


def usual() -> Any:
    """Returns what makes that kind."""
    return kinds()[usual_kind()]


def make_pipeline(folder: str | Path, kind: Kind, seed: int, *sizes: Any, **changed: Any) -> None:
    """Writes a pipeline in diffusers' folder layout."""
    kinds()[kind].make_pipeline(folder, seed, *sizes, **changed)


def make_controlnet(folder: str | Path, kind: Kind, seed: int, *sizes: Any, **changed: Any) -> None:
    """Writes a ControlNet that fits the network of `make_pipeline`."""
    kinds()[kind].make_controlnet(folder, seed, *sizes, **changed)


def make_lora(path: str | Path, kind: Kind, *sizes: Any, **changed: Any) -> None:
    """Writes a LoRA for the network of `make_pipeline`; not for transformers."""
    kinds()[kind].make_lora(path, *sizes, **changed)


def draw_network(kind: Kind, seed: int, *sizes: Any, **changed: Any) -> Any:
    """Makes a network alone, of transformers."""
    return kinds()[kind].draw_network(seed, *sizes, **changed)


def draw_controlnet(kind: Kind, seed: int, *sizes: Any, **changed: Any) -> Any:
    """Makes a ControlNet alone, of transformers."""
    return kinds()[kind].draw_controlnet(seed, *sizes, **changed)
