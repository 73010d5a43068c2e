"""Builds the operations of a transformer and its ControlNets for a sampler. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.graph import Link, NodeCall
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.patches import freeu_patches, network_wrapper
from katz_graph.core.recipe import (
    Component,
    Conditioning,
    ControlUse,
    ModelRecipe,
    Picture,
    VaeRecipe,
)
from katz_graph.models.configuration import config
from katz_graph.models.family import Control, check_controlnet, family_of, reads_mask
from katz_graph.models.vae.kinds import latent_space


def predict(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    controls: Sequence[Control],
    passed: tuple[int, ...] = (),
) -> Link:
    """Adds the embedding, the blocks except `passed` ones, and the head of a transformer.

    Consecutive blocks that read the same ControlNet residuals form one operation, so that no block
    waits for residuals that it does not read. Raises InputError for patches that need a UNet.
    """
    for patch, found in (
        ("a pack's function around the network", network_wrapper(model.patches)),
        ("FreeU", freeu_patches(model.patches)),
    ):
        if found:
            raise InputError(
                f"{model.network.folder}: {patch} does not act on a transformer: remove the patch"
            )
    common = {"model": model, "conditioning": text}
    features = _embedded(nodes, f"{name}-embed", model, step, text)
    groups = _groups(model, controls)
    *grouped, (_, _, last) = groups if controls else [*groups, (0, 0, {})]
    for number, (first, final, residuals) in enumerate(grouped):
        blocks = f"{name}-blocks{number or ''}"
        span: dict[str, Any] = {"first_block": first, "last_block": final} if controls else {}
        if own := [one for one in passed if first <= one and (one <= final or final == -1)]:
            span["passed_over"] = ", ".join(map(str, own))
        nodes[blocks] = NodeCall(
            "TransformerBlocks", {**common, "features": features, **span, **residuals}
        )
        features = Link(blocks, 0)
    nodes[f"{name}-head"] = NodeCall(
        "TransformerHead", {"model": model, "features": features, **last}
    )
    return Link(f"{name}-head", 0)


def _embedded(
    nodes: dict[str, NodeCall], name: str, model: ModelRecipe, step: Link, text: Conditioning
) -> Link:
    """Adds a transformer's embedding, or reuses a ControlNet's of the same branch."""
    call = NodeCall("TransformerEmbed", {"model": model, "conditioning": text, "step": step})
    branch = name.partition("-")[0]
    known = (one for one in nodes if one.startswith(f"{branch}-controlnet"))
    found = next((one for one in known if nodes[one] == call), name)
    nodes[found] = call
    return Link(found, 0)


def _groups(
    model: ModelRecipe, controls: Sequence[Control]
) -> list[tuple[int, int, dict[str, Link]]]:
    """Returns (first block, last block, residuals) of each group; the head is a group. Without
    ControlNets, one group spans all blocks.
    """
    if not controls:
        return [(0, -1, {})]
    family = family_of(model.network).controls
    assert family is not None and family.reads is not None  # ensured by check_controlnet
    reads = list(zip(*(family.reads(one.control_net, model) for one in controls), strict=True))
    found = []
    head = len(reads) - 1
    for (read, _), numbered in groupby(
        enumerate(reads), key=lambda pair: (pair[1], pair[0] == head)
    ):
        places = [place for place, _ in numbered]
        residuals = {
            f"residuals_{slot}": control.residuals[number]
            for slot, (control, number) in enumerate(zip(controls, read, strict=True), start=1)
            if number is not None
        }
        found.append((places[0], places[-1], residuals))
    return found


def draw_control(
    nodes: dict[str, NodeCall],
    name: str,
    model: ModelRecipe,
    step: Link,
    text: Conditioning,
    use: ControlUse,
) -> tuple[Link, ...]:
    """Adds the embedding and the blocks of a ControlNet, and returns one residual per block. Raises
    InputError if it does not fit the model, or if it reads latents or a mask and no VAE or no mask
    is set.
    """
    control_net = use.control_net
    check_controlnet(control_net, model)
    vae = use.vae if reads_latents(control_net.control_net) else None
    check_vae(control_net.control_net, vae, model.latent)
    common = {"control_net": control_net, "conditioning": text}
    inputs: dict[str, Any] = {**common, "image": use.image, "vae": vae}
    family = family_of(model.network).controls
    assert family is not None and family.blocks is not None  # ensured by check_controlnet
    if reads_mask(control_net):
        check_mask(control_net.control_net, use.mask)
        inputs["mask"] = use.mask
    if family.reads_tokens(control_net.control_net):
        tokens = _embedded(nodes, f"{name}-embed", model, step, text)
        inputs |= {"model": model, "features": tokens}
        nodes[name] = NodeCall("TransformerControlTokens", inputs)
    else:
        nodes[name] = NodeCall("TransformerControl", {**inputs, "step": step})
    features, residuals = Link(name, 0), []
    strength = family.strength(control_net.control_net, use.strength)
    for number in range(family.blocks(control_net.control_net)):
        block = f"{name}-block{number}"
        nodes[block] = NodeCall(
            "TransformerControlBlock",
            {**common, "features": features, "strength": strength, "block": number},
        )
        features = Link(block, 0)
        residuals.append(Link(block, 1))
    return tuple(residuals)


def check_vae(control_net: Component, vae: VaeRecipe | None, latent: LatentSpace) -> None:
    """Raises InputError if a ControlNet that reads latents has no VAE, or a VAE with another
    channel count than the model.
    """
    if not reads_latents(control_net):
        return
    if vae is None:
        raise InputError(
            f"{control_net.folder}: the ControlNet reads a picture as a latent: link the model's "
            "VAE to ControlNetApplyAdvanced"
        )
    channels = latent_space(vae).channels
    if channels != latent.channels:
        raise InputError(
            f"{vae.vae.folder}: the VAE gives latents of {channels} channels, the ControlNet in "
            f"{control_net.folder} reads {latent.channels}: link the model's own VAE"
        )


def check_mask(control_net: Component, mask: Picture | None) -> None:
    """Raises InputError if an inpainting ControlNet has no mask."""
    if mask is None:
        raise InputError(
            f"{control_net.folder}: the ControlNet reads a mask: apply it with "
            "ControlNetInpaintingAliMamaApply"
        )


def reads_latents(part: Any) -> bool:
    """Returns whether a ControlNet reads latents rather than pixels."""
    return config(part).get("conditioning_embedding_channels") is None
