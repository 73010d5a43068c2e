"""Trains the miniature transformer's style LoRA. Its file uses the layer names of kohya's trainer:
the original ones, in which query, key and value of a stream are one layer.
"""

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, ModelMixin
from safetensors.torch import load_file, save_file
from torch import nn

from katz_graph.mini.corpus import Bucket
from katz_graph.mini.train_lora import LowRank
from katz_graph.mini.train_noise import batch_captions, pick
from katz_graph.mini.train_transformer import FLOW, FlowPainter, flow_error
from katz_graph.mini.training import Budget, Descent

STYLE, RANK, ALPHA = "dusk", 4, 4.0


def attach(model: ModelMixin) -> dict[str, LowRank]:
    """Hooks new low-rank layers into every block; returns them by original name. The last block
    lacks some text layers.
    """
    layers: dict[str, LowRank] = {}
    there = dict(model.named_modules())
    for number in range(len(model.transformer_blocks)):
        for name, given in FLOW.lora_layers.items():
            parts = [there.get(one.format(number)) for one in given]
            if linear := [one for one in parts if isinstance(one, nn.Linear)]:
                layers[name.format(number)] = _stacked(linear)
    return layers


def _stacked(parts: list[nn.Linear]) -> LowRank:
    """Makes one low-rank layer for several layers that share an input, and adds a range of its
    output rows to the output of each.
    """
    whole = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts))
    layer, begin = LowRank(whole, RANK, ALPHA), 0
    for part in parts:
        end = begin + part.out_features

        def add(
            _module: nn.Module,
            inputs: tuple[torch.Tensor, ...],
            output: torch.Tensor,
            begin: int = begin,
            end: int = end,
        ) -> torch.Tensor:
            rows = layer.up.weight[begin:end]
            return output + layer.scale * nn.functional.linear(layer.down(inputs[0]), rows)

        part.register_forward_hook(add)
        begin = end
    return layer


def _key(name: str, part: str) -> str:
    return f"{FLOW.lora_prefix}{name.replace('.', '_')}.{part}"


def save_lora(layers: dict[str, LowRank], file: Path) -> None:
    """Writes the layers in fp16."""
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        tensors[_key(name, "lora_down.weight")] = layer.down.weight.detach().half().contiguous()
        tensors[_key(name, "lora_up.weight")] = layer.up.weight.detach().half().contiguous()
        tensors[_key(name, "alpha")] = torch.tensor(ALPHA, dtype=torch.float16)
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file, metadata={"format": "pt", "style": STYLE})


def load_lora(layers: dict[str, LowRank], file: Path) -> None:
    """Loads the weights that `save_lora` wrote into attached layers."""
    tensors = load_file(file)
    for name, layer in layers.items():
        layer.down.weight.data.copy_(tensors[_key(name, "lora_down.weight")])
        layer.up.weight.data.copy_(tensors[_key(name, "lora_up.weight")])


def train_transformer_lora(
    painter: FlowPainter, vae: AutoencoderKL, bucket: Bucket, output: Path, budget: Budget,
    pictures: int = 3000, seed: int = 0, batch: int = 16, peak: float = 2e-3,
) -> None:  # fmt: skip
    """Trains on pictures in the style; writes the file `output`."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    for module in painter.trained():
        module.requires_grad_(False).eval()
    styled = bucket.styled(vae, pictures, frozenset({STYLE}))
    layers = attach(painter.transformer)

    def loss(progress: float) -> torch.Tensor:
        _, chosen = pick([styled], batch, generator, 1.0)
        captions = batch_captions((styled.scenes[i] for i in chosen), generator)
        return flow_error(painter, styled.latents[chosen], captions, progress)

    parameters = [one for layer in layers.values() for one in layer.parameters()]
    descent = Descent("transformer's LoRA", parameters, budget, peak)
    descent.run(loss, lambda: save_lora(layers, output))
