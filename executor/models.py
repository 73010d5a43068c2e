"""The live models of one device: loaded on demand, with the weight set that a recipe asks for made resident before they are handed out."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from katz_graph.context import Tile
from katz_graph.executor.merging import merged_module
from katz_graph.executor.weight_set import WeightSets
from katz_graph.models import text, vae
from katz_graph.models.encoding import evaluate
from katz_graph.models.family import vae_shape
from katz_graph.models.features import TextEncoding
from katz_graph.models.load import ModelStore
from katz_graph.recipe import (
    ClipRecipe,
    Component,
    ControlNetRecipe,
    Encoding,
    Lora,
    MergedComponent,
    ModelRecipe,
    Prompt,
    VaeRecipe,
)
from katz_graph.upscale.load import load_upscaler
from katz_graph.upscale.recipe import UpscaleModelRecipe

TEXT_PARTS = ("text_encoder", "text_encoder_2")
MERGED_KEPT = 6  # modules: two models' UNet and text encoders
UPSCALERS_KEPT = 2

Notes = tuple[str, ...]
"""What a person should know of how a result came about."""


class Models:
    """Used by one worker thread at a time."""

    def __init__(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32, store: ModelStore | None = None) -> None:
        self.device = torch.device(device)
        self.dtype = dtype
        self.store = store or ModelStore()
        self.lora_merges, self.lora_seconds = 0, 0.0  # how often a model's LoRAs were not those that were wanted, and what that took
        self.unet_seconds = 0.0  # of those, in UNets
        self._sets: WeakKeyDictionary[Any, WeightSets] = WeakKeyDictionary()  # by live module; a module's originals go with it
        self._merged: dict[MergedComponent, Any] = {}  # the latest last
        self._upscaler = lru_cache(maxsize=UPSCALERS_KEPT)(partial(load_upscaler, device=self.device))

    def load(self, recipe: ModelRecipe | ClipRecipe) -> None:
        """Have the modules of a recipe in memory."""
        if isinstance(recipe, ModelRecipe):
            self._module(recipe.unet, "unet")
        else:
            for encoder, part in zip(recipe.encoders, TEXT_PARTS, strict=False):
                self._module(encoder.encoder, part)
                self.store.tokenizer(encoder.tokenizer)

    def unload(self) -> None:
        """Let go of all that is not in use, one weight after the other: threads that answer for this process are not kept waiting."""
        modules = [*self.store.clear(), *self._merged.values()]
        weights = [weight for module in modules for weight in (*module.parameters(), *module.buffers())]
        weights += [weight for module in modules if (sets := self._sets.pop(module, None)) for weight in sets.originals]
        self._merged.clear()
        self._upscaler.cache_clear()
        modules.clear()
        while weights:
            del weights[-1]
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def unet(self, recipe: ModelRecipe) -> Any:
        module = self._module(recipe.unet, "unet")
        self.unet_seconds += self._resident(module, recipe.loras, "unet")
        return module

    @contextmanager
    def holding(self, recipe: ControlNetRecipe) -> Iterator[None]:
        """Have a ControlNet in memory as long as the `with` statement lasts. NoRoom when others are kept that take the room."""
        with self.store.using_controlnet(recipe.control_net, self.device, self.dtype, recipe.base):
            yield

    def control_net(self, recipe: ControlNetRecipe) -> Any:
        return self.store.controlnet(recipe.control_net, self.device, self.dtype, recipe.base)

    def drop_control_net(self, recipe: ControlNetRecipe) -> None:
        """Let it go, unless it is in use."""
        self.store.drop_controlnet(recipe.control_net, self.device, self.dtype, recipe.base)

    def encode_text(self, encoding: Encoding) -> TextEncoding:
        """[1, T, D], and pooled [1, P] where the family has it."""
        return evaluate(encoding, self._encode_prompt, lambda tensor: tensor.to(self.device, self.dtype))

    def _encode_prompt(self, prompt: Prompt) -> TextEncoding:
        clip, encoders = prompt.clip, []
        for recipe, part in zip(clip.encoders, TEXT_PARTS, strict=False):
            module = self._module(recipe.encoder, part)
            self._resident(module, clip.loras, part)
            encoders.append((module, self.store.tokenizer(recipe.tokenizer)))
        return text.encode(encoders, prompt.text, clip.last_layer, prompt.text_2, clip.learned)

    def decode_latent(self, recipe: VaeRecipe, samples: Tensor, tile: Tile | None = None) -> tuple[Tensor, Notes]:
        """[B, C, h, w] unscaled -> [B, H, W, 3] in 0..1 on the CPU."""
        return self._in_memory(lambda windows: vae.decode(self._vae(recipe), samples.to(self.device), windows), tile)

    def encode_image(self, recipe: VaeRecipe, pixels: Tensor, tile: Tile | None = None) -> tuple[Tensor, Notes]:
        """[B, H, W, 3] in 0..1 -> [B, C, h, w] unscaled on the CPU."""
        return self._in_memory(lambda windows: vae.encode(self._vae(recipe), pixels.to(self.device), windows), tile)

    def _in_memory(self, work: Callable[[Tile | None], tuple[Tensor, bool]], tile: Tile | None) -> tuple[Tensor, Notes]:
        """The result on the CPU; in tiles if asked, or where the whole does not fit into memory."""
        notes: list[str] = []
        try:
            result, redone = work(tile)
        except torch.OutOfMemoryError:
            if tile is not None:
                raise
            notes.append("the whole picture does not fit into memory, so it was done in tiles")
            result, redone = work(Tile())
        if redone:
            notes.append("half precision overflowed, so it was redone in float32")
        return result.cpu(), tuple(notes)

    def upscale(self, recipe: UpscaleModelRecipe, picture: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, 3, H·scale, W·scale] on the CPU, in float32."""
        with torch.no_grad():
            enlarged: Tensor = self._upscaler(recipe)(picture.to(self.device, torch.float32))
        return enlarged.cpu()

    def _vae(self, recipe: VaeRecipe) -> Any:
        """In float32 where its configuration says that half precision overflows."""
        overflows = vae_shape(recipe).force_upcast and self.dtype == torch.float16
        return self.store.vae(recipe.vae, self.device, torch.float32 if overflows else self.dtype)

    def _module(self, part: Component, target: str) -> Any:
        """The live UNet or text encoder; merged ones are kept as long as few others are used."""
        if not isinstance(part, MergedComponent):
            return (self.store.unet if target == "unet" else self.store.text_encoder)(part, self.device, self.dtype)
        module = self._merged.pop(part, None)
        if module is None:
            while len(self._merged) >= MERGED_KEPT:
                del self._merged[next(iter(self._merged))]
            module = merged_module(part, target, self.dtype).to(self.device)
        self._merged[part] = module
        return module

    def _resident(self, module: Any, loras: tuple[Lora, ...], part: str) -> float:
        """Seconds that it took; 0 when the set was there."""
        if module not in self._sets:
            self._sets[module] = WeightSets(module)
        if seconds := self._sets[module].use(loras, part):
            self.lora_merges += 1
            self.lora_seconds += seconds
        return seconds
