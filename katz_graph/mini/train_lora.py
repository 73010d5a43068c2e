"""Trains all style LoRAs in one run: every batch draws a set of styles, enables exactly their LoRAs
and compares with pictures in all these styles. Each style is thereby learnt alone and combined with
the others.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import nn

from katz_graph.mini.corpus import Bucket
from katz_graph.mini.text import rows_at
from katz_graph.mini.train_noise import (
    NOISE,
    Painter,
    batch_captions,
    noise_levels,
    noised,
    pick,
)
from katz_graph.mini.training import Budget, Descent, autocast, prepare, squared_error
from katz_graph.mini.world import STYLES

ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
TRANSFORMER = (*ATTENTION, "ff.net.0.proj", "ff.net.2", "proj_in", "proj_out")
CONVOLUTIONS = ("conv1", "conv2")
ENCODER = ("q_proj", "k_proj", "v_proj", "out_proj")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Describes a style's LoRA: its layers, its rank and alpha, and the naming scheme of its
    file.
    """

    rank: int
    alpha: float
    network: tuple[str, ...]
    encoder: bool
    naming: str


RECIPES = {
    "sticker": Recipe(8, 8.0, (*TRANSFORMER, *CONVOLUTIONS), False, "peft"),
    "stripes": Recipe(8, 8.0, (*TRANSFORMER, *CONVOLUTIONS), False, "diffusers"),
    "dusk": Recipe(8, 4.0, TRANSFORMER, True, "kohya"),
}


class LowRank(nn.Module):
    """Computes scale · up(down(x)), to be added to the output of one linear layer or convolution;
    zero at first.
    """

    def __init__(self, layer: nn.Linear | nn.Conv2d, rank: int, alpha: float) -> None:
        super().__init__()
        self.scale = alpha / rank
        if isinstance(layer, nn.Linear):
            self.down: nn.Linear | nn.Conv2d = nn.Linear(layer.in_features, rank, bias=False)
            self.up: nn.Linear | nn.Conv2d = nn.Linear(rank, layer.out_features, bias=False)
        else:
            # all kernels are square here
            side, stride, padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
            self.down = nn.Conv2d(layer.in_channels, rank, side, stride, padding, bias=False)
            self.up = nn.Conv2d(rank, layer.out_channels, 1, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.up(self.down(x))  # type: ignore[no-any-return]


@dataclass(slots=True)
class Adapters:
    """Holds the low-rank layers of all styles, hooked into a painter. Only the styles in `active`
    have an effect.
    """

    # style -> module name, prefixed with the pipeline part -> layer
    layers: dict[str, dict[str, LowRank]]
    active: set[str] = field(default_factory=set)

    def parameters(self) -> list[nn.Parameter]:
        return [
            p
            for layers in self.layers.values()
            for layer in layers.values()
            for p in layer.parameters()
        ]

    def hook(self, module: nn.Module, by_style: dict[str, LowRank]) -> None:
        def add(
            _module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
        ) -> torch.Tensor:
            for style, layer in by_style.items():
                if style in self.active:
                    output = output + layer(inputs[0])
            return output

        module.register_forward_hook(add)


def _named_layers(painter: Painter) -> Iterator[tuple[str, str, nn.Module]]:
    parts = {
        NOISE.part: painter.network,
        "text_encoder": painter.encoder,
        "text_encoder_2": painter.encoder_2,
    }
    for part, model in parts.items():
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear | nn.Conv2d):
                yield part, name, module


def attach(painter: Painter) -> Adapters:
    """Makes new low-rank layers for every recipe and hooks them into the painter's models."""
    adapters = Adapters({style: {} for style in RECIPES})
    for part, name, module in _named_layers(painter):
        by_style = {}
        for style, recipe in RECIPES.items():
            suffixes = recipe.network if part == NOISE.part else ENCODER if recipe.encoder else ()
            if any(name.endswith("." + suffix) or name == suffix for suffix in suffixes):
                assert isinstance(module, nn.Linear | nn.Conv2d)
                by_style[style] = adapters.layers[style][f"{part}.{name}"] = LowRank(
                    module, recipe.rank, recipe.alpha
                )
        if by_style:
            adapters.hook(module, by_style)
    return adapters


def file_names(naming: str, layer: str) -> tuple[str, str, str | None]:
    """Returns the names of the down, up and alpha tensors of a layer (no alpha if the naming scheme
    has none). `layer` is prefixed with its pipeline part.
    """
    part, name = layer.split(".", 1)
    if part != NOISE.part and not name.startswith("text_model."):
        # files use this prefix, however this version of transformers names its modules
        name = f"text_model.{name}"
    if naming == "kohya":
        prefixes = {
            NOISE.part: NOISE.lora_prefix,
            "text_encoder": "lora_te1_",
            "text_encoder_2": "lora_te2_",
        }
        flat = prefixes[part] + name.replace(".", "_")
        return f"{flat}.lora_down.weight", f"{flat}.lora_up.weight", f"{flat}.alpha"
    if naming == "peft":
        return f"{part}.{name}.lora_A.weight", f"{part}.{name}.lora_B.weight", None
    return f"{part}.{name}.lora.down.weight", f"{part}.{name}.lora.up.weight", None


def save_loras(adapters: Adapters, folder: Path) -> None:
    """Writes one fp16 file per style, each in its own naming scheme."""
    folder.mkdir(parents=True, exist_ok=True)
    for style, layers in adapters.layers.items():
        recipe = RECIPES[style]
        tensors: dict[str, torch.Tensor] = {}
        for name, layer in layers.items():
            down, up, alpha = file_names(recipe.naming, name)
            tensors[down] = layer.down.weight.detach().half().contiguous()
            tensors[up] = layer.up.weight.detach().half().contiguous()
            if alpha is not None:
                tensors[alpha] = torch.tensor(recipe.alpha, dtype=torch.float16)
        save_file(
            tensors, folder / f"{style}.safetensors", metadata={"format": "pt", "style": style}
        )


def load_loras(adapters: Adapters, folder: Path) -> None:
    """Loads the files of `save_loras` to resume training."""
    for style, layers in adapters.layers.items():
        tensors = load_file(folder / f"{style}.safetensors")
        for name, layer in layers.items():
            down, up, _ = file_names(RECIPES[style].naming, name)
            if down in tensors:  # absent if the text encoders have grown since
                layer.down.weight.data.copy_(tensors[down])
                layer.up.weight.data.copy_(tensors[up])


def style_sets() -> list[tuple[frozenset[str], float]]:
    """Returns every non-empty set of styles with its sampling weight: single styles 0.2 each, pairs
    0.11, all three 0.07.
    """
    share = {1: 0.2, 2: 0.11, 3: 0.07}
    return [(frozenset(c), share[n]) for n in (1, 2, 3) for c in combinations(STYLES, n)]


def train_loras(
    painter: Painter, vae: AutoencoderKL, bucket: Bucket, output: Path, budget: Budget,
    pictures: int = 1500, seed: int = 0, batch: int = 16, peak: float = 2e-3, resume: bool = False,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    levels = noise_levels()
    for module in painter.modules():
        module.requires_grad_(False).eval()
    prepare(painter.network)
    adapters = attach(painter)
    if resume:
        load_loras(adapters, output)
    sets = style_sets()
    buckets = [bucket.styled(vae, pictures, styles) for styles, _ in sets]
    shares = np.array([share for _, share in sets])
    print(
        f"loras: latents of {len(sets)} × {pictures} pictures after {budget.seconds:.0f}s",
        flush=True,
    )

    def loss(progress: float) -> torch.Tensor:
        index = int(generator.choice(len(sets), p=shares / shares.sum()))
        adapters.active = set(sets[index][0])
        styled, chosen = pick(buckets[index : index + 1], batch, generator, 1.0)
        captions = batch_captions((styled.scenes[i] for i in chosen), generator)
        latents = styled.latents[chosen].float().contiguous(memory_format=torch.channels_last)
        noisy, noise, timesteps, weight = noised(latents, levels)
        with autocast():
            hidden, pooled = painter.encode(captions, rows_at(progress))
            added = painter.added(pooled, styled.height, styled.width)
            predicted = painter.network(noisy, timesteps, hidden, added_cond_kwargs=added).sample
        return squared_error(predicted, noise, weight)

    descent = Descent("loras", adapters.parameters(), budget, peak)
    descent.run(loss, lambda: save_loras(adapters, output))
