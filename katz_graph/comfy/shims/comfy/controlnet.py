"""Provides `comfy.controlnet` to packs: ControlNets by path."""

from __future__ import annotations

from typing import Any

from katz_graph.comfy.facades.control import ControlNetFacade
from katz_graph.comfy.missing import missing_names
from katz_graph.models.loading.sources import controlnet_recipe

__getattr__ = missing_names(__name__, None)


def load_controlnet(ckpt_path: str, model: Any = None, *_: Any, **__: Any) -> ControlNetFacade:
    """Returns a ControlNet. A file of differences is applied to a copy of `model`'s weights."""
    return ControlNetFacade(
        controlnet_recipe(ckpt_path, None if model is None else model.recipe.network)
    )
