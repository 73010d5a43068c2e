"""Builds UNets of step regions from nodes, as users draw them."""

from __future__ import annotations

from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.recipe import Conditioning, ModelRecipe


def unet(
    nodes: dict[str, NodeCall], name: str, model: ModelRecipe, text: Conditioning, step: Link
) -> Link:
    """Adds a whole UNet; returns its prediction."""
    common = {"model": model, "conditioning": text}
    nodes[f"{name}.encoder"] = NodeCall("UNetEncoder", {"step": step, **common})
    nodes[f"{name}.mid"] = NodeCall("UNetMid", {"features": Link(f"{name}.encoder", 0), **common})
    nodes[f"{name}.decoder"] = NodeCall(
        "UNetDecoder", {"features": Link(f"{name}.mid", 0), **common}
    )
    return Link(f"{name}.decoder", 1)
