"""Calls diffusers' pipelines of Qwen-Image models that are shown a picture."""

from __future__ import annotations

from pathlib import Path

import torch
from diffusers import QwenImageLayeredPipeline
from PIL import Image
from torch import Tensor

from katz_graph.models.families.qwen_image.architecture import LATENT
from katz_graph.models.families.shared.random_transformers import Comparison

SIDE, TOKEN, TOKENS = 640, 16, 256  # pixels of pictures with layers and of tokens; tokens at mu 1


def layered_levels(steps: int, width: int, height: int) -> Tensor:
    """Returns the noise levels of a picture's layers, whose shift grows with the picture."""
    shift = torch.tensor((width * height / TOKEN**2 / TOKENS) ** 0.5).exp()
    times = torch.linspace(1.0, 0.0, steps + 1)
    return shift * times / (1 + (shift - 1) * times)


def layered(folder: Path, text: str, noise: Tensor, image: Tensor, steps: int) -> Tensor:
    """Returns the layers [F - 1, H, W, C] for noise [1, C, F, h, w], without the whole picture."""
    pipeline = QwenImageLayeredPipeline.from_pretrained(folder, processor=None)
    pipeline.set_progress_bar_config(disable=True)
    batch, channels, frames, *cells = noise.shape
    first = noise.transpose(1, 2).contiguous()
    (made,) = pipeline(
        image=Image.fromarray((image[0] * 255).round().byte().numpy()),
        prompt=text,
        true_cfg_scale=1.0,
        layers=frames - 1,
        num_inference_steps=steps,
        latents=pipeline._pack_latents(first, batch, channels, *cells, frames),
        output_type="pt",
    ).images
    pictures: Tensor = made.movedim(1, -1)
    return pictures


LAYERED = Comparison(
    changed={"use_additional_t_cond": True, "use_layer3d_rope": True},
    shape=(1, LATENT.channels, 2, SIDE // LATENT.factor, SIDE // LATENT.factor),
    levels=layered_levels,
    pictures=layered,
    left_out=1,
)
