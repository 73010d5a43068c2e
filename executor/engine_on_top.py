"""Forwards the services of an engine, for engines that do something else with samplers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import (
    ClipRecipe,
    Encoding,
    TextRequest,
    Tile,
    UpscaleModelRecipe,
    VaeRecipe,
)
from katz_graph.executor.engine import DeviceEngine
from katz_graph.ir.device import Device
from katz_graph.ir.region import Region
from katz_graph.ir.values import TextEncoding
from katz_graph.node.types import Context


class EngineOnTop:
    """Implements `katz_graph.node.types.Engine` on top of an engine."""

    def __init__(self, engine: DeviceEngine) -> None:
        self._engine = engine

    @property
    def device(self) -> Device:
        return self._engine.device

    @property
    def allowed(self) -> frozenset[str]:
        return self._engine.allowed

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        return self._engine.sample(region, context)

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        return self._engine.encode_text(encoding, context)

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._engine.encode_image(vae, pixels, context, tile)

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        return self._engine.decode_latent(vae, samples, context, tile)

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        return self._engine.upscale(model, picture, context)

    def generate_text(
        self,
        clip: ClipRecipe,
        request: TextRequest,
        context: Context,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> str:
        return self._engine.generate_text(clip, request, context, progress)

    def prefetch(self, values: Iterable[object], context: Context) -> None:
        self._engine.prefetch(values, context)
