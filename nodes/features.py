"""Changes the features between the blocks of a UNet, inside a step region."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from katz_graph.knobs import Strength
from katz_graph.models.family import architecture
from katz_graph.node import Node
from katz_graph.wires import Features, Model


class ScaleFeatures(Node, category="denoise"):
    """Weigh backbone against skips before an up block, as FreeU does (Si et al. 2024): half of the
    hidden channels times `backbone`, the low frequencies of the skips that this block reads times
    `skip`. Stands right before the UNetDecoder of that block.
    """

    up_block: Annotated[int, Field(ge=0, le=63)] = 0
    backbone: Strength = 1.1
    skip: Strength = 0.9

    def run(self, model: Model, features: Features) -> Features:
        from katz_graph.models.families.unet.freeu import scale_backbone, scale_low_frequencies

        positions = architecture(model.unet).skip_range(self.up_block)
        hidden = scale_backbone(features.hidden, self.backbone)
        skips = tuple(
            scale_low_frequencies(skip, self.skip) if position in positions else skip for position, skip in enumerate(features.skips)
        )
        return replace(features, hidden=hidden, skips=skips)
