"""Converts values between links and packs: wraps recipes in facades for packs, and unwraps them in
outputs. Must not know nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.comfy.facades.clip import ClipFacade
from katz_graph.comfy.facades.conditioning import ConditioningList, from_list, to_list
from katz_graph.comfy.facades.control import ControlNetFacade
from katz_graph.comfy.facades.model import ModelFacade, patched_recipe
from katz_graph.comfy.facades.vae import VaeFacade
from katz_graph.core.recipe import (
    ClipRecipe,
    ConditioningEntry,
    ControlNetRecipe,
    ModelRecipe,
    VaeRecipe,
)

CONDITIONING = "CONDITIONING"


def to_pack(value: Any, socket: str) -> Any:
    """Converts a link's value of this socket type to the object that packs expect."""
    match value:
        case ModelRecipe():
            return ModelFacade(value)
        case ClipRecipe():
            return ClipFacade(value)
        case VaeRecipe():
            return VaeFacade(value)
        case ControlNetRecipe():
            return ControlNetFacade(value)
        case tuple() if socket == CONDITIONING or (
            value and all(isinstance(entry, ConditioningEntry) for entry in value)
        ):
            return to_list(value)
    return value


def from_pack(value: Any, socket: str) -> Any:
    """Converts a pack's output of this socket type to a link's value. InputError for values that
    links cannot carry.
    """
    match value:
        case ModelFacade():
            return patched_recipe(value)
        case ClipFacade() | VaeFacade() | ControlNetFacade():
            return value.recipe
        case ConditioningList():
            return from_list(value)
        case list() if socket == CONDITIONING or _is_conditioning(value):
            return from_list(value)
    return value


def _is_conditioning(value: list[Any]) -> bool:
    pairs = all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[1], Mapping)
        for pair in value
    )
    return bool(value) and pairs and all("pooled_output" in pair[1] for pair in value)
