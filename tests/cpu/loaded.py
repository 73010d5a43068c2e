"""Loads every model that a recipe describes."""

from __future__ import annotations

from typing import Any

import torch

from katz_graph.adapters.lora import describe, read_lora
from katz_graph.core.recipe import (
    ClipRecipe,
    ControlNetRecipe,
    FileIdentity,
    ModelRecipe,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.models.loading.store import ModelStore
from katz_graph.models.text.encoder import encode
from katz_graph.models.text.tokens import load_tokenizer
from katz_graph.upscale.networks import load_upscaler


def load(recipe: Any) -> None:
    store = ModelStore()
    match recipe:
        case ModelRecipe():
            store.network(recipe.network, "cpu", torch.float32)
        case ClipRecipe():
            pairs = [
                (store.text_encoder(one.encoder, "cpu", torch.float32), load_tokenizer(one))
                for one in recipe.encoders
            ]
            encode(pairs, "sand embedding:word", learned=recipe.learned, layout=recipe.layout)
        case VaeRecipe():
            store.vae(recipe.vae, "cpu", torch.float32)
        case ControlNetRecipe():
            store.controlnet(recipe.control_net, "cpu", torch.float32, recipe.base)
        case UpscaleModelRecipe():
            load_upscaler(recipe, torch.device("cpu"))
        case FileIdentity():
            describe(recipe)
            read_lora(recipe)
        case _:
            raise AssertionError(recipe)
