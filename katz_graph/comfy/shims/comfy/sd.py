"""Provides `comfy.sd` to packs: recipes of models by path, with LoRAs. Weights load when a model
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from katz_graph.comfy.facades.clip import ClipFacade
from katz_graph.comfy.facades.model import ModelFacade
from katz_graph.comfy.facades.vae import VaeFacade
from katz_graph.comfy.missing import missing_names, refuse
from katz_graph.comfy.weight_file import file_of
from katz_graph.core.recipe import Lora
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import (
    clip_recipe,
    network_recipe,
    pipeline_recipes,
    vae_recipe,
)

__getattr__ = missing_names(__name__, None)


class VAE(VaeFacade):
    """A VAE from the weights of a file."""

    def __init__(self, sd: Any = None, *_: Any, **__: Any) -> None:
        super().__init__(vae_recipe(file_of(sd, "comfy.sd.VAE")))


def load_checkpoint_guess_config(
    ckpt_path: str,
    output_vae: bool = True,
    output_clip: bool = True,
    output_clipvision: bool = False,
    embedding_directory: Any = None,
    output_model: bool = True,
    **_: Any,
) -> tuple[ModelFacade | None, ClipFacade | None, VaeFacade | None, None]:
    """Returns diffusion model, text encoders and VAE of a checkpoint, and None for the image
    encoder. Missing text encoders are None, as in ComfyUI; a missing VAE fails when it is used.
    """
    if output_clipvision:
        refuse("comfy.sd.load_checkpoint_guess_config(output_clipvision=True)")
    model, clip, vae = pipeline_recipes(ckpt_path)
    chosen = (
        ModelFacade(model) if output_model else None,
        ClipFacade(clip) if output_clip and not clip.missing else None,
        VaeFacade(vae) if output_vae else None,
    )
    return (*chosen, None)


def load_checkpoint(
    config_path: str | None = None,
    ckpt_path: str = "",
    output_vae: bool = True,
    output_clip: bool = True,
    *_: Any,
    **__: Any,
) -> tuple[ModelFacade | None, ClipFacade | None, VaeFacade | None]:
    """Returns model, text encoders and VAE. Ignores `config_path`; the file decides."""
    return load_checkpoint_guess_config(ckpt_path, output_vae, output_clip)[:3]


def load_diffusion_model(unet_path: str, *_: Any, **__: Any) -> ModelFacade:
    """Returns a network, which runs in the engine's dtype."""
    return ModelFacade(network_recipe(unet_path))


load_unet = load_diffusion_model


def load_clip(ckpt_paths: Sequence[str], *_: Any, **__: Any) -> ClipFacade:
    """Returns the text encoders of one file or several."""
    return ClipFacade(clip_recipe(ckpt_paths))


def load_lora_for_models(
    model: Any, clip: Any, lora: Any, strength_model: float, strength_clip: float
) -> tuple[Any, Any]:
    """Adds a LoRA's file to a model and its text encoders; either may be None."""
    file = file_identity(file_of(lora, "comfy.sd.load_lora_for_models"))
    patched = None if model is None else model.clone()
    encoders = None if clip is None else clip.clone()
    if patched is not None and strength_model:
        patched.recipe = patched.recipe.with_lora(Lora(file, strength_model))
    if encoders is not None and strength_clip:
        encoders.recipe = encoders.recipe.with_lora(Lora(file, strength_clip))
    return patched, encoders
