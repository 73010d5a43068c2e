"""Pass *expand*: a coarse sampler as the step region that it stands for.

Each conditioning entry of either side becomes a branch of its own (UNet stages and its ControlNets); entries of one side are blended by
strength, the two sides by guidance; without guidance the negative side is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.errors import InputError
from katz_graph.graph import Expansion, Graph, Link, NodeCall
from katz_graph.planner.region import SLOTS
from katz_graph.recipe import Conditioning, ConditioningEntry, ControlUse, ModelRecipe

WHOLE = (0.0, 1.0)


def expand_sampling(
    begin: str, begin_inputs: Mapping[str, Any], model: ModelRecipe, positive: Conditioning, negative: Conditioning, guidance: float
) -> Expansion:
    """The region of one sampler: `begin` is the type of its begin node and `begin_inputs` what that takes."""
    nodes: dict[str, NodeCall] = {"begin": NodeCall(begin, dict(begin_inputs))}
    if math.isclose(guidance, 1.0):
        prediction = _side(nodes, "positive", model, positive)
    else:
        uncond = _side(nodes, "negative", model, negative)
        cond = _side(nodes, "positive", model, positive)
        nodes["guidance"] = NodeCall("CFGCombine", {"cond": cond, "uncond": uncond, "guidance": guidance})
        prediction = Link("guidance", 0)
    nodes["end"] = NodeCall("StepEnd", {"step": Link("begin", 0), "prediction": prediction})
    return Expansion(Graph(nodes), (Link("end", 0),))


def _side(nodes: dict[str, NodeCall], side: str, model: ModelRecipe, entries: Conditioning) -> Link:
    if not entries:
        raise InputError(f"the {side} conditioning is empty; link a CLIPTextEncode")
    if len(entries) > SLOTS:
        raise InputError(f"the {side} conditioning has {len(entries)} entries; at most {SLOTS} can be combined")
    names = [side] if len(entries) == 1 else [f"{side}{number}" for number in range(1, len(entries) + 1)]
    branches = [_branch(nodes, name, model, entry) for name, entry in zip(names, entries, strict=True)]
    if len(branches) == 1 and _window(entries[0]) == WHOLE:
        return branches[0]
    inputs: dict[str, Any] = {}
    for number, (branch, entry) in enumerate(zip(branches, entries, strict=True), start=1):
        inputs[f"prediction_{number}"] = _within(nodes, f"{names[number - 1]}.range", branch, _window(entry))
        inputs[f"strength_{number}"] = entry.strength
    nodes[f"{side}.blend"] = NodeCall("BlendPredictions", {"step": Link("begin", 0), **inputs})
    return Link(f"{side}.blend", 0)


def _branch(nodes: dict[str, NodeCall], name: str, model: ModelRecipe, entry: ConditioningEntry) -> Link:
    """The UNet of one conditioning entry, with a ControlNet instance per use."""
    text = (replace(entry, control=(), strength=1.0, start_percent=0.0, end_percent=1.0),)
    common = {"model": model, "conditioning": text}
    encoder, middle, decoder = f"{name}.encoder", f"{name}.mid", f"{name}.decoder"
    nodes[encoder] = NodeCall("UNetEncoder", {"step": Link("begin", 0), **common})
    nodes[middle] = NodeCall("UNetMid", {"features": Link(encoder, 0), **common})
    active = [use for use in entry.control if use.strength != 0.0]
    if len(active) > SLOTS:
        raise InputError(f"a conditioning carries {len(active)} ControlNets; at most {SLOTS} can act at once")
    residuals = {
        f"residuals_{number}": _control(nodes, f"{name}.controlnet{number}", text, use) for number, use in enumerate(active, start=1)
    }
    nodes[decoder] = NodeCall("UNetDecoder", {"features": Link(middle, 0), **common, **residuals})
    return Link(decoder, 1)


def _control(nodes: dict[str, NodeCall], name: str, text: Conditioning, use: ControlUse) -> Link:
    inputs = {
        "control_net": use.control_net,
        "step": Link("begin", 0),
        "conditioning": text,
        "image": use.image,
        "strength": use.strength,
    }
    nodes[name] = NodeCall("ControlNet", inputs)
    return _within(nodes, f"{name}.window", Link(name, 0), (use.start_percent, use.end_percent))


def _within(nodes: dict[str, NodeCall], name: str, value: Link, window: tuple[float, float]) -> Link:
    """`value` inside the window of the schedule, nothing outside of it."""
    if window == WHOLE:
        return value
    nodes[name] = NodeCall("StepWindow", {"step": Link("begin", 0), "start_percent": window[0], "end_percent": window[1]})
    nodes[f"{name}.switch"] = NodeCall("Switch", {"condition": Link(name, 0), "on_true": value})
    return Link(f"{name}.switch", 0)


def _window(entry: ConditioningEntry) -> tuple[float, float]:
    return entry.start_percent, entry.end_percent
