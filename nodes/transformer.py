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
    Model,
    Prediction,
    Step,
    TokenResiduals,
    Tokens,
    Vae,
)
from katz_graph.nodes.denoise import Block, OutsideRegion


class TransformerEmbed(Node, category="denoise", stage="transformer_embed"):
    """The tokens of the latent and of the text, as a transformer's blocks take them."""

    def run(self, model: Model, conditioning: Conditioning, step: Step) -> Tokens:
        raise OutsideRegion(self)


class TransformerBlocks(Node, category="denoise", stage="transformer_blocks"):
    """A range of a transformer's blocks, but for those that are passed over (7, 8, 9). Block -1 as
    the last one means the model's last. Residuals are summed and added to the picture's tokens
    before each block of the range.
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
    """The prediction that a transformer makes of its last block's tokens, residuals added."""

    def run(self, model: Model, features: Tokens, *residuals: TokenResiduals | None) -> Prediction:
        raise OutsideRegion(self)


class TransformerControl(Node, category="denoise", stage="transformer_control"):
    """The tokens of a transformer's ControlNet for one reference image, which the model's VAE
    encodes where the ControlNet reads latents.
    """

    def run(
        self,
        control_net: ControlNet,
        conditioning: Conditioning,
        step: Step,
        image: Image,
        vae: Vae | None = None,
    ) -> Tokens:
        raise OutsideRegion(self)


class TransformerControlTokens(Node, category="denoise", stage="transformer_control_tokens"):
    """The tokens of a ControlNet that begins with those of the model's TransformerEmbed, for one
    reference image.
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
    """One block of a transformer's ControlNet, and what it adds to the model's tokens."""

    strength: Strength = 1.0
    block: Annotated[int, Field(ge=0, le=63)] = 0

    def run(
        self, control_net: ControlNet, conditioning: Conditioning, features: Tokens
    ) -> tuple[Tokens, TokenResiduals]:
        raise OutsideRegion(self)
