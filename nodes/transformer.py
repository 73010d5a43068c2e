"""Opens up a transformer in the denoising loop: its tokens, ranges of its blocks, its head."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from katz_graph.node import Node
from katz_graph.nodes.denoise import Block, OutsideRegion
from katz_graph.wires import Conditioning, Model, Prediction, Step, Tokens


class TransformerEmbed(Node, category="denoise", stage="transformer_embed"):
    """The tokens of the latent and of the text, as a transformer's blocks take them."""

    def run(self, model: Model, conditioning: Conditioning, step: Step) -> Tokens:
        raise OutsideRegion(self)


class TransformerBlocks(Node, category="denoise", stage="transformer_blocks"):
    """A range of a transformer's blocks. Block -1 as the last one means the model's last."""

    first_block: Annotated[int, Field(ge=0, le=63)] = 0
    last_block: Block = -1

    def run(self, model: Model, conditioning: Conditioning, features: Tokens) -> Tokens:
        raise OutsideRegion(self)


class TransformerHead(Node, category="denoise", stage="transformer_head"):
    """The prediction that a transformer makes of its last block's tokens."""

    def run(self, model: Model, features: Tokens) -> Prediction:
        raise OutsideRegion(self)
