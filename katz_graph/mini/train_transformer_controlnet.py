"""Trains the silhouette ControlNet of the miniature transformer, which is finished and frozen."""

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from katz_graph.mini.corpus import Bucket, encode
from katz_graph.mini.train_controlnet import save_controlnet
from katz_graph.mini.train_noise import batch_captions, pick
from katz_graph.mini.train_transformer import FLOW, FlowPainter, flow_error
from katz_graph.mini.training import Budget, Descent, hidden_weights


def train_transformer_controlnet(
    painter: FlowPainter, vae: AutoencoderKL, bucket: Bucket, output: Path, budget: Budget,
    pictures: int = 4000, seed: int = 0, batch: int = 16, peak: float = 6e-4,
) -> None:  # fmt: skip
    """Trains on captions that lack many of their words, so that the model has to read the hint: a
    picture of the silhouette, encoded by the VAE.
    """
    torch.manual_seed(seed)
    generator = np.random.default_rng(seed)
    for module in painter.trained():
        module.requires_grad_(False).eval()

    def silhouettes(chosen: list[int]) -> torch.Tensor:
        return bucket.silhouettes(chosen).unsqueeze(-1).expand(-1, -1, -1, 3)

    hints, shown = encode(vae, silhouettes, pictures), bucket.first(pictures)
    model = FLOW.control(painter.transformer)
    model.requires_grad_(True).train()
    model.pos_embed.requires_grad_(False)

    def loss(progress: float) -> torch.Tensor:
        _, chosen = pick([shown], batch, generator, 1.0)
        captions = batch_captions((shown.scenes[i] for i in chosen), generator, keep=0.6)

        def control(noisy: torch.Tensor, *conditions: torch.Tensor) -> list[torch.Tensor]:
            residuals: tuple[list[torch.Tensor]] = model(
                noisy, hints[chosen].float(), 1.0, *conditions, return_dict=False
            )
            return residuals[0]

        return flow_error(painter, shown.latents[chosen], captions, progress, control)

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    hidden = hidden_weights(model)
    descent = Descent("transformer's silhouette", parameters, budget, peak, 0.998, hidden=hidden)
    descent.run(loss, lambda: save_controlnet(model, output))
