"""Trains a miniature ControlNet ("edges" or "silhouette") for the finished, frozen noise-predicting
network.
"""

import copy
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from diffusers import ModelMixin

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
from katz_graph.mini.training import Budget, Descent, autocast, load_model, prepare, squared_error
from katz_graph.picture.filters import canny

Hint = Literal["edges", "silhouette"]


def hints(kind: Hint, bucket: Bucket, chosen: list[int]) -> torch.Tensor:
    """Makes hints [B, 3, H, W] in 0..1: Canny edges of the drawn pictures, or their silhouettes."""
    maps = (
        canny(bucket.pictures(chosen), 0.4, 0.8) if kind == "edges" else bucket.silhouettes(chosen)
    )
    return maps.unsqueeze(1).expand(-1, 3, -1, -1)


def save_controlnet(model: ModelMixin, folder: Path) -> None:
    """Saves the model in fp16; the live model keeps its fp32 weights."""
    copy.deepcopy(model).half().save_pretrained(folder, safe_serialization=True)


def train_controlnet(
    kind: Hint, painter: Painter, buckets: list[Bucket], output: Path, budget: Budget,
    seed: int = 0, batch: int = 16, peak: float = 1e-3, resume: bool = False,
) -> None:  # fmt: skip
    """Trains on captions that lack many of their words, so that the model has to read the hint."""
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    levels = noise_levels()
    for module in painter.modules():
        module.requires_grad_(False).eval()
    model = load_model(output) if resume else NOISE.control(painter.network)
    model.requires_grad_(True).train()
    prepare(painter.network)
    prepare(model)

    def loss(progress: float) -> torch.Tensor:
        bucket, chosen = pick(buckets, batch, generator, 0.85)
        captions = batch_captions((bucket.scenes[i] for i in chosen), generator, keep=0.6)
        latents = bucket.latents[chosen].float().contiguous(memory_format=torch.channels_last)
        noisy, noise, timesteps, weight = noised(latents, levels)
        with autocast():
            with torch.no_grad():
                hidden, pooled = painter.encode(captions, rows_at(progress))
            added = painter.added(pooled, bucket.height, bucket.width)
            down, mid = model(
                noisy,
                timesteps,
                hidden,
                hints(kind, bucket, chosen),
                added_cond_kwargs=added,
                return_dict=False,
            )
            predicted = painter.network(
                noisy, timesteps, hidden, added_cond_kwargs=added,
                down_block_additional_residuals=down, mid_block_additional_residual=mid,
            ).sample  # fmt: skip
        return squared_error(predicted, noise, weight)

    descent = Descent(kind, list(model.parameters()), budget, peak, average=0.998)
    descent.run(loss, lambda: save_controlnet(model, output))
