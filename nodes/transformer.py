"""Exposes a transformer in the denoising loop as nodes: its tokens, ranges of its blocks, its
head.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from katz_graph.node import Node
from katz_graph.node.knobs import Strength
from katz_graph.node.wires import (
    Conditioning,
    ControlNet,
    Image,
    Mask,
    Model,
    Prediction,
    Step,
    TokenResiduals,
    Tokens,
    Vae,
)
from katz_graph.nodes.denoise import Block, OutsideRegion


class TransformerEmbed(Node, category="denoise", stage="transformer_embed"):
    """Embeds the latent and the text as tokens for a transformer's blocks."""

    def run(self, model: Model, conditioning: Conditioning, step: Step) -> Tokens:
        raise OutsideRegion(self)


class TransformerBlocks(Node, category="denoise", stage="transformer_blocks"):
    """Runs a range of a transformer's blocks, except skipped ones (7, 8, 9). A last block of -1
    means the model's last. Sums residuals and adds them to the picture's tokens before each block
    of the range.
    """

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1
    passed_over: str = ""

    def run(
        self,
        model: Model,
        conditioning: Conditioning,
        features: Tokens,
        *residuals: TokenResiduals | None,
    ) -> Tokens:
        raise OutsideRegion(self)


class TransformerHead(Node, category="denoise", stage="transformer_head"):
    """Computes a transformer's prediction from its last block's tokens, with residuals added."""

    def run(self, model: Model, features: Tokens, *residuals: TokenResiduals | None) -> Prediction:
        raise OutsideRegion(self)


class TransformerControl(Node, category="denoise", stage="transformer_control"):
    """Embeds one reference image as tokens of a transformer's ControlNet. The model's VAE encodes
    the image if the ControlNet reads latents. The mask is for inpainting ControlNets; 1 = keep.
    """

    def run(
        self,
        control_net: ControlNet,
        conditioning: Conditioning,
        step: Step,
        image: Image,
        vae: Vae | None = None,
        mask: Mask | None = None,
    ) -> Tokens:
        raise OutsideRegion(self)


class TransformerControlTokens(Node, category="denoise", stage="transformer_control_tokens"):
    """Embeds one reference image for a ControlNet that starts from the tokens of the model's
    TransformerEmbed.
    """

    def run(
        self,
        control_net: ControlNet,
        model: Model,
        conditioning: Conditioning,
        features: Tokens,
        image: Image,
        vae: Vae | None = None,
    ) -> Tokens:
        raise OutsideRegion(self)


class TransformerControlBlock(
    Node,
    category="denoise",
    stage="transformer_control_block",
    names=("features", "residuals"),
):
    """Runs one block of a transformer's ControlNet, and outputs its residual for the model's
    tokens.
    """

    strength: Strength = 1.0
    block: Annotated[int, Field(ge=0, le=63)] = 0

    def run(
        self, control_net: ControlNet, conditioning: Conditioning, features: Tokens
    ) -> tuple[Tokens, TokenResiduals]:
        raise OutsideRegion(self)
