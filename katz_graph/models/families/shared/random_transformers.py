"""Makes small pipelines of transformers with random weights, all of which count, as the
`random_models` of a family describes them; equal arguments give equal weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import diffusers
from torch import nn

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import Encoder, Role, seeded, vae
from katz_graph.models.families.shared.stock import Stock
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES

SPREAD = 0.1  # of weights

Configuration = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RandomTransformer:
    """Describes the small pipelines of a kind of transformers.

    `pipeline`, `network`, `control`: classes of diffusers. `configuration` returns arguments of a
    transformer with so many blocks, `control_configuration` those of a ControlNet with so many,
    from a transformer's. `text_encoders`: in order; a third one only where it is asked for.
    `absent`: what the pipeline's index says that it goes without. `stock`: how the pipeline is
    asked. `roles`: in benches. `wide` returns what changes besides in the configuration for so many
    heads of 64 and latents of so many cells a side, `steady` what keeps rounding small there.
    `published`: what changes at full size, but for the widths of texts.
    """

    pipeline: str
    network: str
    control: str
    configuration: Callable[[int], Configuration]
    control_configuration: Callable[[Configuration, int], Configuration]
    scheduler: Callable[[], Any]
    text_encoders: tuple[Encoder, ...]
    latent: LatentSpace
    absent: tuple[str, ...]
    stock: Stock
    roles: frozenset[Role] = frozenset()
    wide: Callable[[int, int], Configuration] = lambda heads, side: {}
    steady: Configuration = field(default_factory=dict)
    published: Configuration = field(default_factory=dict)

    def widened(self, heads: int, side: int) -> Configuration:
        """Returns what changes in the configuration for so many heads of 64 and latents of so many
        cells a side.
        """
        heads_alone = {"attention_head_dim": 64, "num_attention_heads": heads}
        return {**heads_alone, **self.wide(heads, side)}

    def draw_network(
        self, seed: int, blocks: int = 3, spread: float = SPREAD, **changed: Any
    ) -> Any:
        """Makes a transformer. `spread`: of its weights. `changed`: of its configuration."""
        return _drawn(self.network, {**self.configuration(blocks), **changed}, seed, spread)

    def draw_controlnet(self, seed: int, blocks: int = 2, **changed: Any) -> Any:
        """Makes a ControlNet. `changed`: of its configuration."""
        values = self.control_configuration(self.configuration(blocks), blocks)
        return _drawn(self.control, {**values, **changed}, seed, SPREAD)

    def make_controlnet(self, folder: str | Path, seed: int, *sizes: Any, **changed: Any) -> None:
        """Writes what `draw_controlnet` makes of the same."""
        self.draw_controlnet(seed, *sizes, **changed).save_pretrained(folder)

    def make_pipeline(
        self,
        folder: str | Path,
        seed: int,
        blocks: int = 3,
        with_t5: bool = False,
        spread: float = SPREAD,
        **changed: Any,
    ) -> None:
        """Writes a pipeline in diffusers' folder layout, in torch's default format and made on its
        default device, text encoders in float32: transformer, text encoders, tokenizers, VAE,
        scheduler. `with_t5`: T5 as a third text encoder, of kinds that may go without it. `spread`:
        of the transformer's weights. `changed`: of its configuration.
        """
        folder, scheduler = Path(folder), self.scheduler()
        parts: dict[str, Any] = {
            "transformer": ["diffusers", self.network],
            "vae": ["diffusers", "AutoencoderKL"],
            "scheduler": ["diffusers", type(scheduler).__name__],
        }
        with seeded(seed), quiet(*LIBRARIES):
            network = self.draw_network(seed, blocks, spread, **changed)
            network.save_pretrained(folder / "transformer")
            coder = vae(self.latent)
            # means, and spreads of nothing, so that encoding draws nothing
            last = coder.quant_conv or coder.encoder.conv_out
            last.weight.data[len(last.weight) // 2 :] = 0.0
            last.bias.data[len(last.bias) // 2 :] = -100.0
            coder.save_pretrained(folder / "vae")
            scheduler.save_pretrained(folder / "scheduler")
            suffixes = ("", "_2", "_3") if with_t5 else ("", "_2")
            for suffix, (make, words, tokens) in zip(suffixes, self.text_encoders, strict=False):
                encoder = make()
                encoder.save_pretrained(folder / f"text_encoder{suffix}")
                words().save_pretrained(folder / f"tokenizer{suffix}")
                parts[f"text_encoder{suffix}"] = ["transformers", type(encoder).__name__]
                parts[f"tokenizer{suffix}"] = ["transformers", tokens]
        absent = {name: [None, None] for name in self.absent}
        index = {"_class_name": self.pipeline, "_diffusers_version": "0.42.0"} | absent | parts
        (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def _drawn(name: str, values: Configuration, seed: int, spread: float) -> Any:
    """Makes a network of a configuration, all of whose weights are drawn."""
    with seeded(seed):
        module = getattr(diffusers, name)(**values).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, 0.0, spread)
    return module.requires_grad_(False)
