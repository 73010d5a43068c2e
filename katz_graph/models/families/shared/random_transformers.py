"""Builds small transformer pipelines with random weights from the descriptions in each family's
`random_models`, which also describe calls of the stock diffusers pipeline. All weights affect the
output; equal arguments give equal weights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import (
    Encoder,
    Role,
    factors,
    seeded,
    vae,
)
from katz_graph.models.loading.convert import library_class
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES
from katz_graph.sampling.names import SamplerChoice


@dataclass(frozen=True, slots=True)
class Comparison:
    """Describes a further stock pipeline, of models that are shown a picture, and a request."""

    changed: Mapping[str, Any]
    """Changes to the configuration."""
    shape: tuple[int, ...]
    """Of the noise, [B, C, h, w] or [B, C, F, h, w]."""
    levels: Callable[[int, int, int], Tensor]
    """Returns the pipeline's noise levels for steps, and a picture's width and height in pixels."""
    pictures: Callable[[Path, str, Tensor, Tensor, int], Tensor]
    """Returns the pipeline's pictures [B, H, W, C] in 0..1 for its folder, a text, noise, a picture
    [1, H, W, C] in whole bytes / 255, and steps.
    """
    left_out: int = 0
    """The number of a sampler's first pictures that the pipeline leaves out."""

    def begin(self, steps: int, height: int, width: int) -> dict[str, Any]:
        """Returns the inputs of a SigmasStepBegin that give the pipeline's noise levels."""
        return _over(self.levels(steps, width, height))


@dataclass(frozen=True, slots=True)
class Stock:
    """Describes the calls of a stock pipeline."""

    arguments: Callable[[Tensor, float], dict[str, Any]]
    """Returns the pipeline's arguments for noise [B, C, h, w] and a sampler's guidance."""
    schedule: str = "simple"
    """Scheduler with the same noise levels as the pipeline."""
    levels: Callable[[int, int, int], Tensor] | None = None
    """Returns the pipeline's noise levels for steps, and a picture's width and height in pixels, if
    no scheduler has them.
    """
    embedded_guidance: float | None = None
    """Guidance of the pipeline where a sampler's is 1: the model's guidance input, or none. Such
    pipelines are called without a negative prompt.
    """
    negative: str | None = None
    """Negative prompt of pipelines that take no other."""
    unpacked: Callable[[Tensor, int, int], Tensor] = lambda made, height, width: made
    """Returns the latent [B, C, h, w] from the pipeline's output and the picture's height and
    width.
    """
    parts: Callable[[Path], dict[str, Any]] = lambda folder: {}
    """Returns parts of the pipeline that diffusers cannot load from its folder here."""
    load: Callable[[Path, Any], Any] | None = None
    """Loads the pipeline from a folder, in a dtype, if diffusers has no class for it."""
    euler: Callable[[Any], float] | None = None
    """Replaces a stochastic scheduler by Euler's and returns the factor of the first noise."""
    editing: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Maps the kind of picture that an editing model reads to its pipeline and configuration
    changes.
    """
    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """Further pipelines, by name."""
    inpainting: tuple[str, Mapping[str, Any]] | None = None
    """Pipeline of an inpainting ControlNet, and the changes to the ControlNet's configuration."""

    def begin(self, steps: int, height: int, width: int) -> tuple[str, dict[str, Any]]:
        """Returns the node that begins an evaluation, and its inputs that give the pipeline's noise
        levels for a picture of this size in pixels.
        """
        if self.levels is None:
            names = {"sampler_name": "euler", "scheduler": self.schedule}
            return "StepBegin", {**names, "steps": steps}
        return "SigmasStepBegin", _over(self.levels(steps, width, height))


def _over(sigmas: Tensor) -> dict[str, Any]:
    return {"sampler": SamplerChoice("euler"), "sigmas": sigmas}


SPREAD = 0.1  # standard deviation of weights
LORA_TARGETS = re.compile(r"attn\d?\.(to_[qkv]|add_[qkv]_proj)$|ff\.net\.(0\.proj|2)$")

Configuration = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RandomTransformer:
    """Describes the small pipelines of one kind of transformer."""

    pipeline: str
    """Class in diffusers; so are `network` and `control`."""
    network: str
    control: str
    """Empty if there are no ControlNets."""
    configuration: Callable[[int], Configuration]
    """Returns the arguments of a transformer with this number of blocks."""
    control_configuration: Callable[[Configuration, int], Configuration]
    """Returns the arguments of a ControlNet with this number of blocks, from a transformer's
    arguments.
    """
    scheduler: Callable[[], Any]
    text_encoders: tuple[Encoder, ...]
    """In pipeline order; a third encoder is used only on request."""
    latent: LatentSpace
    absent: tuple[str, ...]
    """Optional parts that the pipeline's index lists as missing."""
    stock: Stock
    """How to call the stock pipeline."""
    settings: Configuration = field(default_factory=dict)
    """Further values of the pipeline's index."""
    coder: Callable[[LatentSpace], Any] = vae
    """Builds the VAE of a latent space."""
    roles: frozenset[Role] = frozenset()
    """Uses in benches."""
    wide: Callable[[int, int], Configuration] = lambda heads, side: {}
    """Returns further changes to the configuration for `heads` heads of width 64 and latents of
    `side` cells a side.
    """
    steady: Configuration = field(default_factory=dict)
    """Changes to the configuration that keep rounding errors small in wide networks."""
    spread: float = SPREAD
    """Default standard deviation of the weights."""
    published: Configuration = field(default_factory=dict)
    """Changes to the configuration at full size, except for text widths."""

    def widened(self, heads: int, side: int) -> Configuration:
        """Returns the changes to the configuration for `heads` heads of width 64 and latents of
        `side` cells a side.
        """
        heads_alone = {"attention_head_dim": 64, "num_attention_heads": heads}
        return {**heads_alone, **self.wide(heads, side)}

    def draw_network(
        self, seed: int, blocks: int = 3, spread: float | None = None, **changed: Any
    ) -> Any:
        """Builds a transformer. `spread`: standard deviation of its weights; `changed`: overrides
        its configuration.
        """
        return _drawn(
            self.network, {**self.configuration(blocks), **changed}, seed, spread or self.spread
        )

    def draw_controlnet(self, seed: int, blocks: int = 2, **changed: Any) -> Any:
        """Builds a ControlNet. `changed`: overrides its configuration."""
        values = self.control_configuration(self.configuration(blocks), blocks)
        return _drawn(self.control, {**values, **changed}, seed, SPREAD)

    def make_controlnet(self, folder: str | Path, seed: int, *sizes: Any, **changed: Any) -> None:
        """Saves the ControlNet that `draw_controlnet` builds from the same arguments."""
        self.draw_controlnet(seed, *sizes, **changed).save_pretrained(folder)

    def make_lora(self, path: str | Path, rank: int, seed: int, blocks: int = 3) -> None:
        """Saves a LoRA for the attention and feed-forward layers of `make_pipeline`'s transformer,
        in PEFT's naming, with alpha equal to the rank.
        """
        with torch.device("meta"):
            module = library_class(self.network)(**self.configuration(blocks))
        tensors: dict[str, Tensor] = {}
        generator = torch.Generator().manual_seed(seed)
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear) and LORA_TARGETS.search(name):
                down, up = factors(layer, rank, generator)
                tensors |= {
                    f"transformer.{name}.lora_A.weight": down,
                    f"transformer.{name}.lora_B.weight": up,
                }
        save_file(tensors, str(path), {"format": "pt"})

    def make_pipeline(
        self,
        folder: str | Path,
        seed: int,
        blocks: int = 3,
        with_t5: bool = False,
        spread: float | None = None,
        **changed: Any,
    ) -> None:
        """Saves a pipeline in diffusers' folder layout: transformer, text encoders, tokenizers,
        VAE, scheduler. Uses torch's default dtype and device; text encoders are float32.

        `with_t5` adds T5 as the third text encoder if it is optional. `spread`: standard deviation
        of the transformer's weights; `changed`: overrides its configuration.
        """
        folder, scheduler = Path(folder), self.scheduler()
        parts: dict[str, Any] = {
            "transformer": ["diffusers", self.network],
            "scheduler": ["diffusers", type(scheduler).__name__],
        }
        with seeded(seed), quiet(*LIBRARIES):
            network = self.draw_network(seed, blocks, spread, **changed)
            network.save_pretrained(folder / "transformer")
            coder = self.coder(self.latent)
            parts["vae"] = ["diffusers", type(coder).__name__]
            # log-variances of -100: sampling the posterior returns the mean
            last = coder.quant_conv or coder.encoder.conv_out
            last.weight.data[len(last.weight) // 2 :] = 0.0
            last.bias.data[len(last.bias) // 2 :] = -100.0
            coder.save_pretrained(folder / "vae")
            scheduler.save_pretrained(folder / "scheduler")
            suffixes = ("", "_2", "_3") if with_t5 else ("", "_2")
            for suffix, (make, words, tokens) in zip(suffixes, self.text_encoders, strict=False):
                encoder = make()
                encoder.save_pretrained(folder / f"text_encoder{suffix}")
                # a processor of text and pictures contains the tokenizer
                place = "processor" if tokens.endswith("Processor") else "tokenizer"
                words().save_pretrained(folder / f"{place}{suffix}")
                parts[f"text_encoder{suffix}"] = ["transformers", type(encoder).__name__]
                parts[f"{place}{suffix}"] = ["transformers", tokens]
        absent = {name: [None, None] for name in self.absent}
        index = {"_class_name": self.pipeline, "_diffusers_version": "0.42.0", **self.settings}
        index |= absent | parts
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def _drawn(name: str, values: Configuration, seed: int, spread: float) -> Any:
    """Builds a network from a configuration and draws all of its weights."""
    with seeded(seed):
        module = library_class(name)(**values).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, 0.0, spread)
    return module.requires_grad_(False)
