"""Trains the miniature transformer's ControlNet for silhouettes beside the finished, frozen
transformer.
"""

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, SD3ControlNetModel

from katz_graph.mini.corpus import Bucket, encode
from katz_graph.mini.text import LENGTH
from katz_graph.mini.train_transformer import FULL_PART, SHORT, FlowPainter, on_the_way
from katz_graph.mini.train_unet import batch_captions, pick
from katz_graph.mini.training import Budget, Descent, autocast, squared_error

BLOCKS = 3


def build_controlnet(painter: FlowPainter) -> SD3ControlNetModel:
    """Copies the first blocks; what leads in and out begins at zero."""
    given = painter.transformer
    wanted = {**given.config, "num_layers": BLOCKS, "extra_conditioning_channels": 0}
    model: SD3ControlNetModel = SD3ControlNetModel.from_config(wanted)
    own, theirs = model.state_dict(), given.state_dict()
    model.load_state_dict({name: theirs.get(name, value) for name, value in own.items()})
    return model


def save_controlnet(model: SD3ControlNetModel, folder: Path) -> None:
    """Saves in fp16; the live model keeps its fp32 weights and is untouched."""
    copy = SD3ControlNetModel.from_config(model.config)
    copy.load_state_dict(model.state_dict())
    copy.half().save_pretrained(folder, safe_serialization=True)


def train_transformer_controlnet(
    painter: FlowPainter, vae: AutoencoderKL, bucket: Bucket, output: Path, budget: Budget,
    pictures: int = 4000, seed: int = 0, batch: int = 16, peak: float = 1e-3,
) -> None:  # fmt: skip
    """Trains on captions that lose many of their words, so that the hint has something to say. It
    is a picture of the silhouette, encoded by the VAE.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    for module in painter.trained():
        module.requires_grad_(False).eval()

    def silhouettes(chosen: list[int]) -> torch.Tensor:
        return bucket.silhouettes(chosen).unsqueeze(-1).expand(-1, -1, -1, 3)

    hints = encode(vae, silhouettes, pictures)
    shown = Bucket(
        bucket.height,
        bucket.width,
        bucket.scenes[:pictures],
        bucket.seeds[:pictures],
        bucket.latents[:pictures],
    )
    model = build_controlnet(painter).requires_grad_(True).train()
    model.pos_embed.requires_grad_(False)

    def loss(progress: float) -> torch.Tensor:
        _, chosen = pick([shown], batch, generator, 1.0)
        captions = batch_captions((shown.scenes[i] for i in chosen), generator, keep=0.6)
        noisy, velocity, way = on_the_way(shown.latents[chosen].float())
        with autocast():
            with torch.no_grad():
                rows = SHORT if progress < FULL_PART else LENGTH
                hidden, pooled = painter.encode(captions, rows)
            residuals = model(
                noisy, hints[chosen].float(), 1.0, hidden, pooled, 1000 * way, return_dict=False
            )[0]
            predicted = painter.transformer(
                noisy, hidden, pooled, 1000 * way, block_controlnet_hidden_states=residuals
            ).sample
        return squared_error(predicted, velocity)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    descent = Descent("transformer's silhouette", parameters, budget, peak, average=0.998)
    descent.run(loss, lambda: save_controlnet(model, output))
