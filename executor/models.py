"""The live models of one device: loaded on demand, with the weight set that a recipe asks for made resident before they are handed out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.executor.weight_set import WeightSets
from katz_graph.models import text, vae
from katz_graph.models.family import vae_shape
from katz_graph.models.features import TextEncoding
from katz_graph.models.load import ModelStore
from katz_graph.recipe import ClipRecipe, Component, ControlNetRecipe, Lora, ModelRecipe, VaeRecipe


class Models:
    """Used by one worker thread at a time."""

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, store: ModelStore | None = None) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.store = store or ModelStore()
        self._sets: dict[Component, WeightSets] = {}

    def load(self, recipe: ModelRecipe | ControlNetRecipe | ClipRecipe) -> None:
        """Have the modules of a recipe in memory."""
        if isinstance(recipe, ModelRecipe):
            self.store.unet(recipe.unet, self.device, self.dtype)
        elif isinstance(recipe, ControlNetRecipe):
            self.control_net(recipe)
        else:
            for encoder in recipe.encoders:
                self.store.text_encoder(encoder.encoder, self.device, self.dtype)
                self.store.tokenizer(encoder.tokenizer)

    def unet(self, recipe: ModelRecipe) -> Any:
        module = self.store.unet(recipe.unet, self.device, self.dtype)
        self._resident(recipe.unet, module, recipe.loras, "unet")
        return module

    def control_net(self, recipe: ControlNetRecipe) -> Any:
        return self.store.controlnet(recipe.control_net, self.device, self.dtype)

    def encode_text(self, clip: ClipRecipe, prompt: str) -> TextEncoding:
        """[1, T, D], and pooled [1, P] where the family has it."""
        encoders = []
        parts = ("text_encoder", "text_encoder_2")
        for recipe, part in zip(clip.encoders, parts, strict=False):
            module = self.store.text_encoder(recipe.encoder, self.device, self.dtype)
            self._resident(recipe.encoder, module, clip.loras, part)
            encoders.append((module, self.store.tokenizer(recipe.tokenizer)))
        return text.encode(encoders, prompt, clip.last_layer)

    def decode_latent(self, recipe: VaeRecipe, samples: Tensor) -> tuple[Tensor, bool]:
        """[B, C, h, w] unscaled -> [B, H, W, 3] in 0..1 on the CPU, and whether it had to be redone in float32."""
        picture, redone = vae.decode(self._vae(recipe), samples.to(self.device))
        return picture.cpu(), redone

    def encode_image(self, recipe: VaeRecipe, pixels: Tensor) -> tuple[Tensor, bool]:
        latent, redone = vae.encode(self._vae(recipe), pixels.to(self.device))
        return latent.cpu(), redone

    def _vae(self, recipe: VaeRecipe) -> Any:
        """In float32 where its configuration says that half precision overflows."""
        overflows = vae_shape(recipe).force_upcast and self.dtype == torch.float16
        return self.store.vae(recipe.vae, self.device, torch.float32 if overflows else self.dtype)

    def _resident(self, part: Component, module: Any, loras: tuple[Lora, ...], target: str) -> None:
        if part not in self._sets:
            self._sets[part] = WeightSets(module, target)
        self._sets[part].use(loras)
