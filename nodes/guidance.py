"""Changes how a model's predictions are combined. All nodes return recipes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.patches import (
    NormedDifference,
    NormedGuidance,
    RescaledGuidance,
    SkipLayerGuidance,
    SkipLayerNegative,
    SkippedBlocks,
    ZeroStar,
)
from katz_graph.models.family import block_numbers
from katz_graph.node import Node, Widget
from katz_graph.node.knobs import Fraction, Share
from katz_graph.node.wires import Model

GUIDANCE = "advanced/guidance"
SkipScale = Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.1)]


class RescaleCFG(Node, category="advanced/model"):
    """Rescales guided predictions to the contrast of the conditional one, by the share `multiplier`
    (Lin et al. 2024).
    """

    multiplier: Share = 0.7

    def run(self, model: Model) -> Model:
        return model.with_patch(RescaledGuidance(self.multiplier))


class CFGNorm(Node, category=GUIDANCE, names=("patched_model",), optional=("pre_cfg",)):
    """Limits the guided prediction's channel norm at each position to the conditional one's, then
    multiplies by `strength`. With `pre_cfg`, rescales x - denoised to the conditional norm by the
    share `strength`.
    """

    strength: Annotated[float, Field(ge=0.0, le=100.0), Widget(step=0.01)] = 1.0
    pre_cfg: bool = False

    def run(self, model: Model) -> Model:
        kind = NormedDifference if self.pre_cfg else NormedGuidance
        return model.with_patch(kind(self.strength))


class CFGZeroStar(Node, category=GUIDANCE, names=("patched_model",)):
    """Scales the negative prediction to the positive one's projection onto it (Fan et al. 2025)."""

    def run(self, model: Model) -> Model:
        return model.with_patch(ZeroStar())


class SkipLayerGuidanceDiT(Node, category=GUIDANCE):
    """Guides away from a transformer's prediction without some of its double and single blocks,
    within a window of the schedule. This costs one more prediction a step. Blocks of a kind that
    the model lacks are ignored.
    """

    double_layers: str = "7, 8, 9"
    single_layers: str = "7, 8, 9"
    scale: SkipScale = 3.0
    start_percent: Fraction = 0.01
    end_percent: Fraction = 0.15
    rescaling_scale: Annotated[float, Field(ge=0.0, le=10.0), Widget(step=0.01)] = 0.0

    def run(self, model: Model) -> Model:
        blocks = _blocks(self, self.double_layers, self.single_layers)
        return _weakened(model, blocks, self.scale, self.rescaling_scale)


class SkipLayerGuidanceSD3(Node, category=GUIDANCE):
    """Applies SkipLayerGuidanceDiT to models that have only double blocks."""

    layers: str = "7, 8, 9"
    scale: SkipScale = 3.0
    start_percent: Fraction = 0.01
    end_percent: Fraction = 0.15

    def run(self, model: Model) -> Model:
        return _weakened(model, _blocks(self, self.layers, ""), self.scale, 0.0)


class SkipLayerGuidanceDiTSimple(Node, category=GUIDANCE):
    """Skips some of the transformer's double and single blocks in the negative prediction, within a
    window of the schedule. Adds no prediction, and does nothing without a negative one.
    """

    double_layers: str = "7, 8, 9"
    single_layers: str = "7, 8, 9"
    start_percent: Fraction = 0.0
    end_percent: Fraction = 1.0

    def run(self, model: Model) -> Model:
        blocks = _blocks(self, self.double_layers, self.single_layers)
        return model if blocks is None else model.with_patch(SkipLayerNegative(blocks))


def _blocks(
    node: SkipLayerGuidanceDiT | SkipLayerGuidanceSD3 | SkipLayerGuidanceDiTSimple,
    double: str,
    single: str,
) -> SkippedBlocks | None:
    """Returns the blocks that a node names, or None if it names none."""
    try:
        numbers = block_numbers(double), block_numbers(single)
    except InputError as error:
        raise InputError(f"{type(node).__name__}, layers: {error}") from None
    return SkippedBlocks(*numbers, node.start_percent, node.end_percent) if any(numbers) else None


def _weakened(model: Model, blocks: SkippedBlocks | None, scale: float, rescaling: float) -> Model:
    if blocks is None or scale == 0.0:
        return model
    return model.with_patch(SkipLayerGuidance(blocks, scale, rescaling))
