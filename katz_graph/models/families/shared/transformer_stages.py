"""Declares the stages that all transformer families share. Never imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from katz_graph.core.patches import whole_sequence
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.ir.device import Work
from katz_graph.ir.region import Ref
from katz_graph.models.configuration import config
from katz_graph.models.costs.layers import LayeredWork
from katz_graph.models.costs.sums import less
from katz_graph.models.families.shared.stages import (
    channels_once,
    position_once,
    reference_once,
    text_once,
)
from katz_graph.models.family import block_numbers, family_of
from katz_graph.models.stages import (
    Extent,
    Hoisted,
    Reader,
    Sized,
    Stage,
    WorkCounts,
    short_digest,
    uncounted,
)

COMPUTE = "katz_graph.models.families.shared.transformer"
EXAMPLES = "katz_graph.models.families.shared.transformer_examples"
NOUN = "transformer"


def _work(name: str) -> Callable[[Mapping[str, Any], Extent, WorkCounts], Work]:
    """Returns the work function of a stage that runs a range of a network's blocks."""

    def count(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
        values, sizes = config(network_of(inputs)), _sizes(inputs, extent)

        def of(sizes: Sized) -> Work:
            return counts.work(values, name, sizes, extent.value_bytes)

        passed = [
            of(replace(sizes, first_block=number, last_block=number))
            for number in _passed_over(inputs)
        ]
        return less(of(sizes), passed)

    return count


def _sizes(inputs: Mapping[str, Any], extent: Extent) -> Sized:
    batch, _, *frames, height, width = extent.shape
    first, last = inputs.get("first_block", 0), inputs.get("last_block", -1)
    if "block" in inputs:
        first = last = inputs["block"]
    rows = height * math.prod(frames)  # of tokens: frames are one below the other
    return Sized(
        batch,
        rows,
        width,
        extent.tokens,
        first,
        None if last == -1 else last,
        references=extent.references,
        prefix="prefix" in inputs,
    )


def _passed_over(inputs: Mapping[str, Any]) -> tuple[int, ...]:
    return block_numbers(inputs.get("passed_over", ""))


def _layers(
    inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts, active: Mapping[int, int]
) -> LayeredWork:
    """Counts the work of a range of blocks by layer."""
    values, sizes = config(network_of(inputs)), _sizes(inputs, extent)
    found = counts.layers(values, f"{NOUN}_blocks", sizes, active, extent.value_bytes)
    passed = {str(number) for number in _passed_over(inputs)}
    return replace(found, layers=tuple(one for one in found.layers if one.name not in passed))


def network_of(inputs: Mapping[str, Any]) -> Component:
    """Returns the network or ControlNet that an operation runs."""
    recipe = inputs.get("control_net") or inputs["model"]
    return recipe.control_net if isinstance(recipe, ControlNetRecipe) else recipe.network


def _hint(reader: Reader) -> Hoisted:
    """Returns the reference of `reference_once`."""
    reference = reader.inputs["reference"]
    _, _, key = reference.operation.partition(":")
    return key, {"control_net": reader.model, "reference": reference}


def _fill(reader: Reader) -> Hoisted:
    """Returns the sampler's model, for a ControlNet's pad token."""
    model = reader.inputs["model"]
    return short_digest(model), {"model": model}


def _has_prefix(reader: Reader) -> bool:
    """Returns whether an operation reads keys and values of the tokens before the picture."""
    model = reader.model
    return (
        reader.prefix
        and isinstance(model, ModelRecipe)
        and family_of(model.network).network.prefix is not None
        and not whole_sequence(model.patches)
    )


def _context_once(reader: Reader) -> Hoisted | None:
    """Returns the reader's text and model, unless keys and values replace the text."""
    return None if _has_prefix(reader) else text_once(reader)


def _prefix_once(reader: Reader) -> Hoisted | None:
    """Returns text, references, model and range of blocks, and the tokens of the range before."""
    if not _has_prefix(reader):
        return None
    names = ("model", "text", "fixed", "first_block", "last_block")
    inputs = {name: reader.inputs[name] for name in names if name in reader.inputs}
    inputs["references"] = reader.entry.references
    before = reader.previous.get("prefix")
    if isinstance(before, Ref):
        inputs["before"] = replace(before, output=1)
    _, _, key = reader.inputs["fixed"].operation.partition(":")
    blocks = inputs.get("first_block", 0), inputs.get("last_block", -1)
    return f"{key}:{blocks[0]}-{blocks[1]}", inputs


def _prefix_first(inputs: Mapping[str, Any]) -> Mapping[str, tuple[str, Hoisted]]:
    """Returns the text's tokens, which the first range of blocks reads."""
    if "before" in inputs:
        return {}
    reads = {name: inputs[name] for name in ("model", "text")}
    return {"context": (CONTEXT.name, (short_digest(sorted(reads.items())), reads))}


def _held(inputs: Mapping[str, Any], extent: Extent) -> float:
    """Returns the bytes of a range's keys and values."""
    network = network_of(inputs)
    count = family_of(network).network.prefix
    assert count is not None  # ensured by `_has_prefix`
    blocks, values = count(network)
    first, last = inputs.get("first_block", 0), inputs.get("last_block", -1)
    stop = blocks if last == -1 else last + 1
    tokens = extent.tokens + sum(map(math.prod, extent.references))
    return float(values * (stop - first) * tokens * extent.value_bytes)


def _part(part: str, colour: str, **declared: Any) -> Stage:
    """Declares one stage of a transformer."""
    name = f"{NOUN}_{part}"
    return Stage(
        name,
        _work(name),
        compute=f"{COMPUTE}:{part}",
        example=f"{EXAMPLES}:{part}",
        module="model",
        costed=True,
        holds_weights=True,
        placeable=True,
        group=NOUN,
        label=f"{NOUN} {part}",
        colour=colour,
        **declared,
    )


CONTEXT = Stage(
    f"{NOUN}_context",
    _work(f"{NOUN}_context"),
    compute=f"{COMPUTE}:context",
    bind=f"{COMPUTE}:bind_context",
    example=f"{EXAMPLES}:context",
    module="model",
    once=_context_once,
    reads_text=True,
)
PREFIX = Stage(
    f"{NOUN}_prefix",
    _work(f"{NOUN}_prefix"),
    compute=f"{COMPUTE}:prefix",
    bind=f"{COMPUTE}:bind_prefix",
    example=f"{EXAMPLES}:prefix",
    module="model",
    recipes=("references",),
    once=_prefix_once,
    first=_prefix_first,
    recorded=False,  # computed once per request
    reads_text=True,
    chained=True,
    held=_held,
)
POOLED = Stage(
    f"{NOUN}_pooled",
    uncounted,
    compute=f"{COMPUTE}:pooled",
    bind=f"{COMPUTE}:bind_pooled",
    module="model",
    once=text_once,
    reads_text=True,
)
FIXED = Stage(
    f"{NOUN}_fixed",
    uncounted,
    compute=f"{COMPUTE}:fixed",
    bind=f"{COMPUTE}:bind_fixed",
    module="model",
    recipes=("cells", "references"),
    once=position_once,
    recorded=False,  # positions are computed from Python numbers
    reads_text=True,
    for_all_rows=True,
)
CHANNELS = Stage(
    f"{NOUN}_channels",
    uncounted,
    compute=f"{COMPUTE}:channels",
    bind=f"{COMPUTE}:bind_channels",
    recipes=("model", "concatenated", "part"),
    once=channels_once,
)
BLOCKS = {"text": "text_encoder", "fixed": FIXED.name}
EMBED = BLOCKS | {"context": CONTEXT.name, "pooled": POOLED.name}
REFERENCE = Stage(
    f"{NOUN}_reference",
    uncounted,
    compute=f"{COMPUTE}:reference",
    bind=f"{COMPUTE}:bind_reference",
    module="vae",
    recipes=("control_net", "image", "mask", "cells"),
    recorded=False,
    once=reference_once,
    replaces=("image", "mask", "vae"),
)
HINT = Stage(
    f"{NOUN}_hint",
    uncounted,
    compute=f"{COMPUTE}:hint",
    module="control_net",
    once=_hint,
    replaces=("reference",),
)
FILL = Stage(
    f"{NOUN}_fill",
    uncounted,
    compute=f"{COMPUTE}:fill",
    module="model",
    recorded=False,
    once=_fill,
)
SEEN = {"reference": REFERENCE.name, "hint": HINT.name}


def _control(name: str, label: str, **declared: Any) -> Stage:
    """Declares one stage of a ControlNet."""
    return Stage(
        f"{NOUN}_{name}",
        _work(f"{NOUN}_{name}"),
        compute=f"{COMPUTE}:{name}",
        example=f"{EXAMPLES}:{name}",
        module="control_net",
        costed=True,
        holds_weights=True,
        placeable=True,
        pooled=True,
        group=f"{NOUN}_controlnet",
        label=label,
        colour="#f58518",
        **declared,
    )


STAGES = (
    _part(
        "embed",
        "#4c78a8",
        gives=("state",),
        hoists=EMBED | {"concatenated": CHANNELS.name},
    ),
    _part(
        "blocks",
        "#72b7b2",
        gives=("hidden",),
        hoists=BLOCKS | {"prefix": PREFIX.name},
        count_layers=_layers,
    ),
    _part("head", "#54a24b", bind=f"{COMPUTE}:bind_head", gives=("prediction",)),
    CONTEXT,
    PREFIX,
    POOLED,
    FIXED,
    CHANNELS,
    _control(
        "control",
        "ControlNet embed",
        gives=("state",),
        hoists=EMBED | SEEN,
    ),
    _control(
        "control_tokens",
        "ControlNet embed",
        recipes=("model",),
        gives=("hidden",),
        hoists=BLOCKS | {"pooled": POOLED.name} | SEEN | {"fill": FILL.name},
    ),
    _control(
        "control_block",
        "ControlNet block",
        rows=("strength",),
        gives=("hidden", "counted"),
        hoists=BLOCKS,
        stale_output=1,
    ),
    REFERENCE,
    HINT,
    FILL,
)
