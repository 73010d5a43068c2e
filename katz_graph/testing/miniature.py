"""Generates pictures with the miniature models, through planner and engine, for their judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.latent_space import LatentSamples
from katz_graph.core.recipe import (
    ClipRecipe,
    ConditioningEntry,
    ControlUse,
    Lora,
    ModelRecipe,
    Picture,
    Prompt,
    VaeRecipe,
)
from katz_graph.executor.graph.run_stats import RunStats
from katz_graph.files.folders import MINI
from katz_graph.ir.region import Region
from katz_graph.mini.evaluate import HINTS
from katz_graph.mini.world import STYLES
from katz_graph.models.family import text_sets
from katz_graph.models.loading.identity import file_identity
from katz_graph.models.loading.sources import (
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
    typed_clip_recipe,
    vae_recipe,
)
from katz_graph.models.vae.kinds import latent_space
from katz_graph.node.types import Context, Engine
from katz_graph.planner.passes.expand import expand_sampling
from katz_graph.testing.requests import bare_context, bind

SIDE = 128  # pixels, picture height and width


@dataclass(frozen=True, slots=True)
class Miniature:
    """Holds the miniature models of one family, and the adapters trained for them."""

    model: ModelRecipe
    clip: ClipRecipe
    vae: VaeRecipe
    scheduler: str
    guidance: float
    hints: Sequence[str]  # kinds of control pictures, one ControlNet each
    styles: Sequence[str]  # one LoRA each
    prefix: str = ""  # of the ControlNets' and LoRAs' file names
    texts: bool = True  # the LoRAs also patch the text encoders


def noise_miniature() -> Miniature:
    """Returns the noise-predicting models."""
    return Miniature(*pipeline_recipes(MINI / "pipeline"), "normal", 4.0, HINTS, STYLES)


def flow_miniature() -> Miniature:
    """Returns the flow-matching transformer's models. They include the CLIP encoders of the
    noise-predicting pipeline.
    """
    flow, pipeline = MINI / "flow", MINI / "pipeline"
    encoders = pipeline / "text_encoder", pipeline / "text_encoder_2", flow / "text_encoder_3"
    ((_, texts),) = text_sets(len(encoders))
    return Miniature(
        network_recipe(flow / "transformer"),
        typed_clip_recipe(encoders, texts.type),
        vae_recipe(flow / "vae"),
        "sgm_uniform",
        5.0,
        ("silhouette",),
        ("dusk",),
        "flow-",
        texts=False,
    )


class EnginePaint:
    """Generates pictures of captions with the engine, as the callable that the miniature evaluation
    expects. `measured` accumulates over all pictures.
    """

    def __init__(self, engine: Engine, miniature: Miniature | None = None) -> None:
        self.engine, self.measured = engine, RunStats()
        self.miniature = miniature or noise_miniature()

    def __call__(
        self,
        captions: list[str],
        seeds: list[int],
        control: tuple[str, Tensor] | None = None,
        loras: Sequence[tuple[str, float]] = (),
        steps: int = 20,
    ) -> Tensor:
        """Returns pictures [B, 128, 128, 3] in 0..1, one per caption."""
        return torch.cat(
            [
                self._one(*pair, control, number, loras, steps)
                for number, pair in enumerate(zip(captions, seeds, strict=True))
            ]
        )

    def _one(
        self,
        caption: str,
        seed: int,
        control: tuple[str, Tensor] | None,
        number: int,
        loras: Sequence[tuple[str, float]],
        steps: int,
    ) -> Tensor:
        if control is not None:
            kind, hints = control
            control = kind, hints[number : number + 1]
        return self.decoded(
            self.sampled(miniature_region(self.miniature, caption, seed, control, loras, steps))
        )

    def sampled(self, region: Region) -> Tensor:
        """Returns the final latent [1, C, h, w], unscaled."""
        latent, _ = self.engine.sample(region, self._context())
        samples: Tensor = latent["samples"]
        return samples

    def decoded(self, latent: Tensor) -> Tensor:
        """Returns the picture [1, 128, 128, 3] in 0..1 of an unscaled latent."""
        return self.engine.decode_latent(self.miniature.vae, latent, self._context())

    def _context(self) -> Context:
        context = bare_context(self.engine)
        context.measured = self.measured
        return context


def miniature_region(
    mini: Miniature,
    caption: str,
    seed: int,
    control: tuple[str, Tensor] | None = None,
    loras: Sequence[tuple[str, float]] = (),
    steps: int = 20,
    latent: LatentSamples | None = None,
) -> Region:
    """Builds the region of a sampler. `control`: kind of ControlNet, and its picture [1, 128, 128,
    3] in 0..1. `latent`: repainted under its mask, unscaled; an empty one by default.
    """
    model, clip = mini.model, mini.clip
    for name, strength in loras:
        file = MINI / "loras" / f"{mini.prefix}{name}.safetensors"
        lora = Lora(file_identity(file), strength)
        model, clip = model.with_lora(lora), clip.with_lora(lora) if mini.texts else clip
    uses: tuple[ControlUse, ...] = ()
    if control is not None:
        kind, hint = control
        folder = MINI / "controlnet" / f"{mini.prefix}{kind}"
        uses = (ControlUse(controlnet_recipe(folder), Picture.of(hint), vae=mini.vae),)
    positive, negative = (ConditioningEntry(Prompt(clip, text), uses) for text in (caption, ""))
    space = latent_space(mini.vae)
    side = space.cells(SIDE)
    begin: dict[str, Any] = {
        "model": model,
        "latent_image": latent or {"samples": torch.zeros(1, space.channels, side, side)},
        "seed": seed,
        "steps": steps,
        "sampler_name": "euler",
        "scheduler": mini.scheduler,
    }
    expansion = expand_sampling("StepBegin", begin, model, (positive,), (negative,), mini.guidance)
    return bind(expansion.graph, expansion.outputs[0].node)
