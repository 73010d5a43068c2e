"""Calls the stages of a network and a ControlNet without the engine, for comparison in a bench of
two processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from diffusers import ControlNetModel, UNet2DConditionModel
from torch import Tensor

from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE
from katz_graph.ir.values import Features, Residuals, Step, TextEncoding
from katz_graph.models.families.unet import blocks as unet
from katz_graph.models.families.unet import control_blocks as controlnet
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.embedding import added_embedding


class ByHand:
    """Calls a pipeline's network and a ControlNet on square latents."""

    def __init__(self, pipeline: Path, control: Path, cells: int) -> None:
        with torch.inference_mode():
            self._unet = UNet2DConditionModel.from_pretrained(pipeline / "unet")
            self._controlnet = ControlNetModel.from_pretrained(control)
            side = DEFAULT_LATENT_SPACE.pixels(cells)
            width = self._unet.config.cross_attention_dim
            pooled = self._unet.config.projection_class_embeddings_input_dim
            pooled -= 6 * self._unet.config.addition_time_embed_dim
            sizes = torch.tensor([[side, side, 0, 0, side, side, 6.0]])
            self._text = TextEncoding(torch.randn(1, 77, width), torch.randn(1, pooled), sizes)
            self._cached = {
                module: (
                    cross_attention_keys_values(module, self._text.hidden),
                    added_embedding(module, self._text),
                )
                for module in (self._unet, self._controlnet)
            }
            self._reference = controlnet.embed_reference(
                self._controlnet, torch.rand(1, 3, side, side)
            )

    def branch(self, latent: Tensor, controls: int) -> Tensor:
        """Returns the prediction [B, C, h, w], with 0 or 1 ControlNets."""
        residuals = [self.control(latent)] if controls else []
        return self.decode(self.encode(latent), residuals)

    def encode(self, latent: Tensor) -> Features:
        """Returns the features before the decoder."""
        cached, added = self._cached[self._unet]
        features = unet.encode(self._unet, _step(latent), self._text, cached, added=added)
        return unet.mid(self._unet, features, self._text, cached)

    def decode(self, middle: Features, residuals: Sequence[Residuals]) -> Tensor:
        """Returns the prediction [B, C, h, w]."""
        _, raw = unet.decode(
            self._unet, middle, self._text, self._cached[self._unet][0], residuals=residuals
        )
        assert raw is not None  # not None because all blocks ran
        return raw

    def control(self, latent: Tensor) -> Residuals:
        return controlnet.control(
            self._controlnet,
            _step(latent),
            self._text,
            self._reference,
            torch.full((len(latent),), 0.8),
            *self._cached[self._controlnet],
        )


def _step(latent: Tensor) -> Step:
    return Step.of(latent, latent, 1.0, 500.0)
