"""Makes conditionings of models that take a picture beside the noisy latent: inpainting, and
editing by instruction.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from katz_graph.context import Context
from katz_graph.node import Node
from katz_graph.nodes.conditioning import mapped
from katz_graph.nodes.vae import whole_cells, with_mask
from katz_graph.recipe import Concatenated, Picture
from katz_graph.wires import Conditioning, Image, Latent, LatentSamples, Mask, Vae

if TYPE_CHECKING:
    from torch import Tensor


class InpaintModelConditioning(Node, category="conditioning/inpaint", names=("positive", "negative", "latent")):
    """What an inpainting model is shown: the mask, and the picture with grey in its place. With
    `noise_mask` only the mask is repainted.
    """

    noise_mask: bool = True

    def run(
        self, positive: Conditioning, negative: Conditioning, vae: Vae, pixels: Image, mask: Mask, context: Context
    ) -> tuple[Conditioning, Conditioning, Latent]:
        from katz_graph.picture.mask import greyed

        picture, covering = with_mask(self, pixels, mask, context)
        shown = context.engine.encode_image(vae, greyed(picture, covering), context)
        seen = Concatenated(Picture.of(shown), Picture.of(covering))
        latent: dict[str, Tensor] = {"samples": context.engine.encode_image(vae, picture, context)}
        if self.noise_mask:
            latent["noise_mask"] = covering.unsqueeze(1)
        sides = [mapped(side, lambda entry: replace(entry, concatenated=seen)) for side in (positive, negative)]
        return sides[0], sides[1], cast(LatentSamples, latent)


class InstructPixToPixConditioning(Node, category="conditioning/instructpix2pix", names=("positive", "negative", "latent")):
    """The picture that a model for editing by instruction is shown (Brooks et al. 2023)."""

    def run(
        self, positive: Conditioning, negative: Conditioning, vae: Vae, pixels: Image, context: Context
    ) -> tuple[Conditioning, Conditioning, Latent]:
        shown = context.engine.encode_image(vae, whole_cells(self, pixels[..., :3], context), context)
        seen = Concatenated(Picture.of(shown))
        sides = [mapped(side, lambda entry: replace(entry, concatenated=seen)) for side in (positive, negative)]
        return sides[0], sides[1], {"samples": shown * 0.0}
