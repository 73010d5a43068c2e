"""Draws the operations that a sampler needs of a transformer. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping

from katz_graph.errors import InputError
from katz_graph.graph import Link, NodeCall
from katz_graph.patches import freeu_patches, unet_wrapper
from katz_graph.recipe import Conditioning, ModelRecipe

OTHER_NAMES = "katz_graph.models.families.shared.naming:other_names"


def predict(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    residuals: Mapping[str, Link],
) -> Link:
    """Adds the embedding, the blocks and the head of a transformer. InputError for patches of a
    network that has other parts.
    """
    for patch, found in (
        ("a pack's function around the network", unet_wrapper(model.patches)),
        ("FreeU", freeu_patches(model.patches)),
    ):
        if found:
            raise InputError(
                f"{model.network.folder}: {patch} does not act on a transformer: take the patch off"
            )
    embed, blocks, head = f"{name}-embed", f"{name}-blocks", f"{name}-head"
    common = {"model": model, "conditioning": text}
    nodes[embed] = NodeCall("TransformerEmbed", {**common, "step": step})
    nodes[blocks] = NodeCall("TransformerBlocks", {**common, "features": Link(embed, 0)})
    nodes[head] = NodeCall("TransformerHead", {"model": model, "features": Link(blocks, 0)})
    return Link(head, 0)
