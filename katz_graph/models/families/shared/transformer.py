"""Computes the stages of transformers with the family's `Stack`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe, ModelRecipe, References
from katz_graph.ir.values import TextEncoding, Tokens, per_row
from katz_graph.models.active import ActiveBlock, Layers, collected, layers_of
from katz_graph.models.configuration import config
from katz_graph.models.families.shared.compute import UNPOOLED, fit_reference, fit_visible
from katz_graph.models.families.shared.transformer_region import check_vae
from katz_graph.models.families.shared.transformer_stack import (
    Fixed,
    KeysValues,
    ReferenceTokens,
    family_of_module,
    padded,
    patch_grid,
    stack_of,
)
from katz_graph.models.families.shared.transformer_stages import network_of
from katz_graph.models.family import architecture, block_numbers, family_of
from katz_graph.models.prepared.modulations import activate
from katz_graph.models.stages import Loop, Outputs, named
from katz_graph.picture.batch import repeated
from katz_graph.sampling.prediction import to_denoised


def bind_context(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"kinds": _kinds(inputs)}


def context(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (stack_of(module).context(module, _typed(module, given["text"]), given["kinds"]),)


def _kinds(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    recipe = inputs["model"]
    return recipe.types if isinstance(recipe, ControlNetRecipe) else ()


def pooled(module: Any, given: Mapping[str, Any]) -> Outputs:
    text: TextEncoding = given["text"]
    if given["reads_pooled"] and text.pooled is None:
        raise InputError(UNPOOLED)
    return (stack_of(module).vectors(module, _typed(module, text)),)


def bind_pooled(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"reads_pooled": architecture(network_of(inputs)).pooled_width is not None}


def bind_fixed(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Scales reference latents to the model's latent space, one per picture of the batch."""
    seen: References | None = inputs["references"]
    latents = [] if seen is None else [latent.pixels for latent in seen.latents]
    return {
        "cells": (*loop.shape[2:-2], *(inputs["cells"] or loop.shape[-2:])),
        "before": len(_kinds(inputs)),
        "latents": tuple(
            repeated(loop.latent.normalised(one), loop.shape[0]).to(loop.dtype) for one in latents
        ),
        "placing": "" if seen is None else seen.placing,
    }


def fixed(module: Any, given: Mapping[str, Any]) -> Outputs:
    stack = stack_of(module)
    *frames, height, width = given["cells"]
    grid = patch_grid(stack.side(module), height, width)
    references = ReferenceTokens(given["latents"], given["placing"], given["text"].slots)
    tokens = given["before"] + given["text"].hidden.shape[1]
    options = {"frames": frames[0]} if frames else {}
    return (stack.fixed(module, *grid, tokens, references, **options),)


def bind_prefix(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Computes one row for all pictures, unless they have different references."""
    seen: References | None = inputs["references"]
    several = seen is not None and any(len(one.pixels) > 1 for one in seen.latents)
    return {"copies": 1 if several else loop.shape[0]}


def prefix(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the keys and values of the tokens before the picture for each of a range of blocks,
    and the tokens behind the range.
    """
    stack, tokens = stack_of(module), given.get("before")
    if tokens is None:
        tokens = stack.before(given["context"], given["fixed"])[:: given["copies"]]
    numbers = _range(module, given)
    tokens, stored = stack.prefix(module, numbers, tokens, given["fixed"])
    return stored, tokens


def bind_channels(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Makes the extra input channels, cropped to the operation's part of the latent."""
    model: ModelRecipe = inputs["model"]
    make = named(family_of(model.network).network.channels)
    extra = architecture(model.network).extra_channels
    whole: Tensor = make(inputs["concatenated"], extra, torch.zeros(loop.shape), model.latent)
    part = inputs["part"]
    if part is not None:
        whole = whole[..., part.top : part.top + part.height, part.left : part.left + part.width]
    return {"channels": whole}


def channels(module: None, given: Mapping[str, Any]) -> Outputs:
    return (given["channels"],)


def bind_reference(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Resizes a reference image to the picture, or to the operation's part of it, and a mask to the
    latent.
    """
    cells = inputs["cells"] or loop.shape[-2:]
    height, width = map(loop.latent.pixels, cells)
    part = inputs["control_net"].control_net
    check_vae(part, inputs.get("vae"), loop.latent)  # explicit regions were not checked before
    stack = import_module(family_of(part).network.stack)
    unshifted = stack.unshifted(config(part))
    space = loop.latent.unshifted() if unshifted else loop.latent
    pixels = fit_reference(inputs["image"].pixels, loop.shape[0], height, width)
    controls = family_of(part).controls
    if controls is not None and controls.picture:
        pixels = named(controls.picture)(config(part), pixels)
    mask = inputs.get("mask")
    visible = None if mask is None else fit_visible(mask.pixels, loop.shape[0], *cells)
    return {"pixels": pixels, "space": space, "dtype": str(loop.dtype), "visible": visible}


def reference(encode: Callable[[Tensor], Tensor] | None, given: Mapping[str, Any]) -> Outputs:
    """Returns the input of a ControlNet: the reference encoded by a VAE, with the mask behind it if
    there is one, or its pixels in -1..1.
    """
    pixels: Tensor = given["pixels"]
    dtype = getattr(torch, given["dtype"].removeprefix("torch."))
    if encode is None:
        return ((pixels * 2 - 1).to(dtype),)
    latent = encode(pixels.movedim(1, -1)).to(pixels.device)
    seen = given["space"].normalised(latent)
    if given["visible"] is not None:
        seen = torch.cat([seen, given["visible"].to(seen.dtype)], dim=1)
    return (seen.to(dtype),)


def hint(module: Any, given: Mapping[str, Any]) -> Outputs:
    stack = stack_of(module)
    return (stack.hint(module, given["reference"].to(module.dtype)),)


def control(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the input tokens of a ControlNet's first block."""
    (tokens,) = embed(module, given)
    return (replace(tokens, hidden=tokens.hidden + given["hint"]),)


def fill(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the pad-token embedding [1, 1, D] for picture tokens; [1, 0, D] if the model pads
    none.
    """
    return (stack_of(module).pad_token(module).clone(),)


def control_tokens(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the first block's input tokens, for a ControlNet that reads the model's embedded
    tokens.
    """
    tokens: Tokens = given["features"]
    stack = stack_of(module)
    hidden, text, embedding = stack.embed_control(
        module, tokens, given["hint"], given["pooled"], given["fill"], given["fixed"]
    )
    return (Tokens(hidden, text, embedding, tokens.step),)


def control_block(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Runs one block of a ControlNet. Returns the tokens and the residual times its strength."""
    tokens: Tokens = given["features"]
    stack, number = stack_of(module), given["block"]
    (embedding,) = activate([stack.blocks(module)[number]], tokens.embedding)
    hidden, text = stack.block(
        module, number, tokens.hidden, tokens.text, embedding, given["fixed"]
    )
    residual = stack.residual(module, number, hidden)
    wide = residual.float()  # diffusers multiplies by a Python number, in float32
    scaled = (wide * per_row(given["strength"], wide)).to(residual.dtype)
    return replace(tokens, hidden=hidden, text=text), scaled


def embed(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Embeds the latent and the text as tokens. Pads the latent circularly to whole patches.
    Patches of a latent [B, C, F, h, w] are those of its frames, one below the other.
    """
    step, stack = given["step"], stack_of(module)
    x = step.model_input
    if given.get("concatenated") is not None:
        x = torch.cat([x, given["concatenated"].to(x.dtype)], dim=1)
    embedding = stack.embedding(module, step.timestep, given["pooled"])
    x = padded(x, stack.side(module))
    if x.ndim == 5:
        x = x.flatten(2, 3)
    hidden, text = stack.embed(module, x, given.get("context"), embedding, given["fixed"])
    return (Tokens(hidden, text, embedding, step),)


def blocks(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Runs a range of blocks; last block -1 is the model's last."""
    tokens: Tokens = given["features"]
    numbers, passed = _range(module, given), block_numbers(given.get("passed_over", ""))
    if beyond := [number for number in passed if number not in numbers]:
        raise InputError(
            f"TransformerBlocks: cannot skip block {beyond[0]}: the range is {numbers.start} to "
            f"{numbers.stop - 1}"
        )
    layers, stored = layers_of(given), given.get("prefix", ())
    tokens = run_blocks(
        module, tokens, numbers, given["fixed"], _residual(given), passed, layers, stored
    )
    return tokens, *collected(layers)


def _range(module: Any, given: Mapping[str, Any]) -> range:
    """Returns the numbers of a call's blocks. Raises InputError for blocks that do not exist."""
    count = len(stack_of(module).blocks(module))
    first, last = given["first_block"], given["last_block"]
    last = count - 1 if last == -1 else last
    if not first <= last < count:
        raise InputError(
            f"TransformerBlocks: blocks {first} to {last} do not exist: the model has 0 to "
            f"{count - 1}"
        )
    return range(first, last + 1)


def run_blocks(
    module: Any,
    tokens: Tokens,
    numbers: range,
    fixed: Fixed,
    residual: Tensor | None = None,
    passed: tuple[int, ...] = (),
    layers: Layers | None = None,
    prefix: Sequence[KeysValues] = (),
) -> Tokens:
    """Runs a range of blocks except `passed` ones, and stores the outputs that later blocks read as
    skips. Adds the residual before each block, or to the block's skip if it reads one. `layers`:
    what blocks read from a template, named by their numbers; other blocks compute all tokens.
    `prefix`: for each block the keys and values of the tokens before the picture.
    """
    stack, sources = stack_of(module), skip_sources(module)
    before, after = (still_read(sources, number) for number in (numbers.start, numbers.stop))
    if len(before) != len(tokens.skips):
        raise InputError(
            f"TransformerBlocks: block {numbers.start} and later ones read the outputs of blocks "
            f"{', '.join(map(str, before)) or 'none'}: link features from block "
            f"{numbers.start - 1}"
        )
    outputs = dict(zip(before, tokens.skips, strict=True))
    hidden, text = tokens.hidden, tokens.text
    part = stack.blocks(module)[numbers.start : numbers.stop]
    embeddings = activate(part, tokens.embedding)
    for number, one, embedding in zip(numbers, part, embeddings, strict=True):
        options: dict[str, Any] = {}
        cached = layers if isinstance(one, ActiveBlock) else None
        if number in sources:
            options["skip"] = _with_residual(outputs[sources[number]], residual)
        else:
            hidden = _with_residual(hidden, residual)
        if prefix:
            options["prefix"] = prefix[number - numbers.start]
        if number not in passed:
            if cached is not None and (active := cached.active(str(number), hidden.shape[1])):
                options["active"] = active
            hidden, text = stack.block(module, number, hidden, text, embedding, fixed, **options)
            if cached is not None:
                cached.collect(str(number), hidden)
        outputs[number] = hidden
    later = tuple(outputs[number] for number in after)
    return Tokens(hidden, text, tokens.embedding, tokens.step, later)


def skip_sources(module: Any) -> Mapping[int, int]:
    """Maps each block that reads a skip to the earlier block that produces it."""
    name = family_of_module(module).network.skips
    return cast(Mapping[int, int], named(name)(module)) if name else {}


def still_read(sources: Mapping[int, int], number: int) -> list[int]:
    """Lists the blocks before `number` whose outputs are still read as skips."""
    return sorted(early for late, early in sources.items() if early < number <= late)


def bind_head(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"parametrisation": loop.parametrisation}


def head(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the prediction: denoised, or raw under a diffusers scheduler."""
    tokens: Tokens = given["features"]
    stack, x = stack_of(module), tokens.step.x
    rows, columns = patch_grid(stack.side(module), *x.shape[-2:])
    frames = x.shape[2:-2]
    hidden = _with_residual(tokens.hidden, _residual(given))
    whole = stack.head(module, hidden, tokens.embedding, rows * math.prod(frames), columns)
    if frames:
        whole = torch.unflatten(whole, 2, (*frames, -1))
    raw = whole[..., : x.shape[-2], : x.shape[-1]]
    return (to_denoised(raw, tokens.step, given["parametrisation"]),)


def _residual(given: Mapping[str, Any]) -> Tensor | None:
    """Returns the sum of the ControlNet residuals, added in order."""
    found = [given[name] for name in sorted(given) if name.startswith("residuals_")]
    there = [one for one in found if one is not None]
    return None if not there else sum(there[1:], start=there[0])


def _with_residual(hidden: Tensor, residual: Tensor | None) -> Tensor:
    """Adds a residual to the picture's tokens, which precede the references'."""
    if residual is None:
        return hidden
    count = residual.shape[1]
    if count == hidden.shape[1]:
        return hidden + residual
    return torch.cat([hidden[:, :count] + residual, hidden[:, count:]], dim=1)


def _typed(module: Any, text: TextEncoding) -> TextEncoding:
    """Casts a text encoding to the module's dtype, which may be wider than the encoders'."""
    dtype = module.dtype
    if text.hidden.dtype == dtype:
        return text
    vector = text.pooled
    return replace(
        text, hidden=text.hidden.to(dtype), pooled=None if vector is None else vector.to(dtype)
    )
