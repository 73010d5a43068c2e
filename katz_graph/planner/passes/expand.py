"""Pass *expand*: expands a sampler node to its step region.

Each conditioning entry becomes a separate branch (the network's stages and its ControlNets).
Predictions of one list are blended by weight; guidance combines the positive and negative results.
Without guidance, omits negative branches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Expansion, Graph, Link, NodeCall
from katz_graph.core.guidance_spec import Guider
from katz_graph.core.patches import SkippedBlocks, references_apart
from katz_graph.core.recipe import Area, Conditioning, ConditioningEntry, ControlUse, ModelRecipe
from katz_graph.ir.region import CROP, SLOTS
from katz_graph.models.family import Control, check_controlnet, family_of, skipped_blocks
from katz_graph.planner.conditioning import WHOLE, balanced, combine, within
from katz_graph.planner.region import fit_latent


def expand_sampling(
    begin: str,
    begin_inputs: Mapping[str, Any],
    model: ModelRecipe,
    positive: Conditioning,
    negative: Conditioning,
    guidance: float,
) -> Expansion:
    """Returns the region of a sampler with plain guidance; it outputs the latent."""
    expansion = expand_guider(
        begin, begin_inputs, Guider("cfg", model, positive, negative, guidance=guidance)
    )
    return replace(expansion, outputs=expansion.outputs[:1])


def expand_guider(begin: str, begin_inputs: Mapping[str, Any], guider: Guider) -> Expansion:
    """Returns the region of one sampler. `begin` is the type of its begin node, `begin_inputs` that
    node's inputs. It outputs the latent, and the prediction of the last step's first evaluation.
    """
    uses = guider.model.controls  # removed from the model, or their pictures would be sent with it
    model = replace(guider.model, controls=())
    guider = replace(guider, model=model)
    latent = fit_latent(begin_inputs["latent_image"], model)
    entries = balanced(
        [getattr(guider, side) for side in guider.sides], *latent["samples"].shape[-2:]
    )
    network = family_of(model.network).network
    if references_apart(model.patches) and not network.references_apart:
        raise InputError(
            f"{model.network.folder}: the model was not trained with references that attend to "
            "references only: remove FluxKVCache"
        )
    unused = dict.fromkeys(network.unused(entry) for side in entries for entry in side)
    sides = {
        name: tuple(
            network.complete(
                replace(entry, control=entry.control + uses), model, latent, number == 0
            )
            for entry in side
        )
        for number, (name, side) in enumerate(zip(guider.sides, entries, strict=True))
    }
    given = {**begin_inputs, "latent_image": latent, "model": model}
    nodes: dict[str, NodeCall] = {"begin": NodeCall(begin, given)}

    def side(name: str, without: SkippedBlocks | None = None, number: int = 0) -> Link:
        suffix = "" if without is None else f"-weakened{number or ''}"
        passed = () if without is None else skipped_blocks(without, model)
        return _side(nodes, name, model, sides[name], passed, suffix)

    prediction = combine(nodes, guider, side)
    nodes["end"] = NodeCall("StepEnd", {"step": Link("begin", 0), "prediction": prediction})
    outputs = Link("end", 0), Link("end", 1)
    return Expansion(Graph(nodes), outputs, warnings=tuple(filter(None, unused)))


def _side(
    nodes: dict[str, NodeCall],
    side: str,
    model: ModelRecipe,
    entries: Conditioning,
    passed: tuple[int, ...],
    suffix: str,
) -> Link:
    """Adds a conditioning list's branches, which skip the blocks `passed`. `suffix` names the set
    of skipped blocks; all sets share the list's ControlNets.
    """
    if not entries:
        raise InputError(f"the {side} conditioning is empty; link a CLIPTextEncode")
    names = (
        [side]
        if len(entries) == 1
        else [f"{side}{number}" for number in range(1, len(entries) + 1)]
    )
    branches = [
        _branch(nodes, name, model, entry, passed, suffix)
        for name, entry in zip(names, entries, strict=True)
    ]
    names = [f"{name}{suffix}" for name in names]
    if len(branches) == 1 and _counts_everywhere(entries[0]):
        return branches[0]
    weighted = [
        within(nodes, f"{name}-range", _weighed(nodes, name, branch, entry), _window(entry))
        for name, branch, entry in zip(names, branches, entries, strict=True)
    ]
    while len(weighted) > SLOTS:  # the maximum number of a node's inputs
        name = f"{side}{suffix}-sum{len(weighted)}"
        weighted = [_joined(nodes, name, "SumPredictions", weighted[:SLOTS]), *weighted[SLOTS:]]
    return _joined(nodes, f"{side}{suffix}-blend", "BlendPredictions", weighted)


def _joined(nodes: dict[str, NodeCall], name: str, kind: str, weighted: Sequence[Link]) -> Link:
    numbered = {f"weighted_{number}": link for number, link in enumerate(weighted, start=1)}
    nodes[name] = NodeCall(kind, {"step": Link("begin", 0), **numbered})
    return Link(name, 0)


def _counts_everywhere(entry: ConditioningEntry) -> bool:
    return (
        _window(entry) == WHOLE
        and entry.area is None
        and entry.mask is None
        and entry.strength != 0.0
    )


def _weighed(nodes: dict[str, NodeCall], name: str, branch: Link, entry: ConditioningEntry) -> Link:
    inputs: dict[str, Any] = {
        "step": Link("begin", 0),
        "prediction": branch,
        "strength": entry.strength,
    }
    if entry.area is not None:
        inputs |= {"top": entry.area.top, "left": entry.area.left}
    if entry.mask is not None:
        inputs |= {"strength": entry.strength * entry.mask.strength, "mask": entry.mask.mask.pixels}
    nodes[f"{name}-weight"] = NodeCall("WeighPrediction", inputs)
    return Link(f"{name}-weight", 0)


def _branch(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    entry: ConditioningEntry,
    passed: tuple[int, ...],
    suffix: str,
) -> Link:
    """Adds the network of one conditioning entry, with a ControlNet instance per use."""
    text = (
        ConditioningEntry(
            entry.encoding,
            sizes=entry.sizes,
            concatenated=entry.concatenated,
            guidance=entry.guidance,
            references=entry.references,
        ),
    )
    step = Link("begin", 0) if entry.area is None else _crop(nodes, f"{name}-area", entry.area)
    active = [use for use in entry.control if use.strength != 0.0]
    if len(active) > SLOTS:
        raise InputError(
            f"a conditioning has {len(active)} ControlNets; at most {SLOTS} can act at once"
        )
    controls = [
        _control(nodes, f"{name}-controlnet{number}", model, step, text, use)
        for number, use in enumerate(active, start=1)
    ]
    predict = family_of(model.network).network.predict
    return predict(nodes, f"{name}{suffix}", model, step, text, controls, passed)


def _crop(nodes: dict[str, NodeCall], name: str, area: Area) -> Link:
    inputs = {"top": area.top, "left": area.left, "height": area.height, "width": area.width}
    nodes[name] = NodeCall(CROP, {"step": Link("begin", 0), **inputs})
    return Link(name, 0)


def _control(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    use: ControlUse,
) -> Control:
    controls = family_of(model.network).controls
    if controls is None:
        check_controlnet(use.control_net, model)
        raise AssertionError  # no ControlNet fits such a model
    residuals = controls.draw(nodes, name, model, step, text, use)
    window = use.start_percent, use.end_percent
    return Control(
        use.control_net,
        tuple(
            within(nodes, f"{name}-window", link, window, number)
            for number, link in enumerate(residuals)
        ),
    )


def _window(entry: ConditioningEntry) -> tuple[float, float]:
    return entry.start_percent, entry.end_percent
