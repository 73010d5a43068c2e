"""Guidance in a region: which sides of a guider are computed, and the nodes that combine their predictions.

At guidance 1 the other side would not count, so it is left out, unless a patch of the model asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from katz_graph.graph import Link, NodeCall
from katz_graph.guider import Guider
from katz_graph.patches import guidance_patch, needs_uncond, opaque_patches, post_guidance_patches
from katz_graph.recipe import ModelRecipe

Side = Callable[[str], Link]
"""The name of a side -> the prediction of its branches, which this call adds to the region."""


def combine(nodes: dict[str, NodeCall], guider: Guider, side: Side) -> Link:
    """Add to `nodes` what the guider computes; the guided prediction."""
    everything = needs_uncond(guider.model.patches)
    plain, plain_outer = (math.isclose(scale, 1.0) and not everything for scale in (guider.guidance, guider.outer))
    if guider.kind == "nested":
        negative, middle, positive = side("negative"), side("middle"), side("positive")
        inner = _patched(nodes, "guidance.inner", guider.model, positive, middle, guider.guidance)
        return _combined(nodes, "guidance", {"cond": inner, "uncond": negative, "guidance": guider.outer})
    if guider.kind == "dual" and not (plain and plain_outer):
        outer_uncond = None if plain_outer else side("negative")
        middle, positive = side("middle"), side("positive")
        outer = _patched(nodes, "guidance.outer", guider.model, middle, outer_uncond, guider.outer)
        return _combined(nodes, "guidance", {"cond": positive, "uncond": middle, "base": outer, "guidance": guider.guidance})
    alone = guider.kind != "cfg" or plain
    uncond = None if alone else side("negative")
    return _patched(nodes, "guidance", guider.model, side("positive"), uncond, 1.0 if guider.kind == "basic" else guider.guidance)


def _patched(nodes: dict[str, NodeCall], name: str, model: ModelRecipe, cond: Link, uncond: Link | None, guidance: float) -> Link:
    """One prediction against another as the model's patches have it; without any, and with one prediction, that one."""
    if uncond is None and not opaque_patches(model.patches):
        return cond
    if guidance_patch(model.patches) is None and not post_guidance_patches(model.patches):
        return cond if uncond is None else _combined(nodes, name, {"cond": cond, "uncond": uncond, "guidance": guidance})
    sides = {"cond": cond} if uncond is None else {"cond": cond, "uncond": uncond}
    nodes[name] = NodeCall("PatchedCFGCombine", {"step": Link("begin", 0), "model": model, "guidance": guidance, **sides})
    return Link(name, 0)


def _combined(nodes: dict[str, NodeCall], name: str, inputs: dict[str, object]) -> Link:
    nodes[name] = NodeCall("CFGCombine", inputs)
    return Link(name, 0)
