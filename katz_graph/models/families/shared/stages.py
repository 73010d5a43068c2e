"""Declares the stages that families share: text encoding, VAE encode and decode, and the weighting
of regional predictions. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Picture
from katz_graph.ir.device import Work
from katz_graph.ir.region import Previous, Ref
from katz_graph.models.configuration import config
from katz_graph.models.costs.sums import total
from katz_graph.models.family import architecture
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
from katz_graph.models.text.kinds import used_configuration
from katz_graph.models.text.pictures import seen_pictures
from katz_graph.models.text.recipe import prompts


def text_work(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
    encoders = [
        (encoder.encoder, prompt.clip.layout, prompt.clip.layout.length(number) or extent.tokens)
        for prompt in prompts(inputs["encoding"])
        for number, encoder in enumerate(prompt.clip.encoders)
    ]
    works = [
        counts.work(
            used_configuration(encoder, layout),
            "text_encoder",
            Sized(1, 0, 0, tokens),
            extent.value_bytes,
        )
        for encoder, layout, tokens in encoders
    ]
    return total(works)


def vision_work(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
    sizes = Sized(1, 0, 0, extent.tokens)
    values = config(inputs["encoding"].tower)
    return counts.work(values, "vision_encoder", sizes, extent.value_bytes)


def see_first(inputs: Mapping[str, Any]) -> Mapping[str, tuple[str, Hoisted]]:
    """Returns the pictures that the text encoders of a text see."""
    return {
        f"{SEEN}{number}": (VISION.name, (short_digest(one), {"encoding": one}))
        for number, one in enumerate(seen_pictures(inputs["encoding"]))
    }


def encode_once(reader: Reader) -> Hoisted:
    """Returns a text's recipe, and whether the model takes pooled text."""
    entry = reader.entry
    return reader.text_key, {
        "encoding": entry.encoding,
        "sizes": entry.sizes,
        "guidance": None if entry.guidance == "off" else entry.guidance,
        "pooled": architecture(reader.base.network).pooled_width is not None,
    }


def text_once(reader: Reader) -> Hoisted:
    """Returns the reader's text and model."""
    inputs = {"model": reader.model, "text": reader.inputs["text"]}
    return f"{reader.text_key}:{reader.model_key}", inputs


def position_once(reader: Reader) -> Hoisted:
    """Returns text, model, part of the latent and reference images."""
    key, inputs = text_once(reader)
    cells = reader.part and reader.part.cells
    # ControlNets see no reference images
    references = reader.entry.references if reader.model is reader.inputs.get("model") else None
    key = f"{key}:{short_digest((cells, references))}"
    return key, {**inputs, "cells": cells, "references": references}


def reference_once(reader: Reader) -> Hoisted:
    """Returns a ControlNet's image and mask, and the size of the operation's part of the latent.
    Raises InputError for an image or a mask from the loop.
    """
    cells, vae = reader.part and reader.part.cells, reader.inputs.get("vae")
    pictures: dict[str, Picture] = {}
    for name in ("image", "mask"):
        value = reader.inputs.get(name)
        if isinstance(value, (Ref, Previous)):
            raise InputError(
                f"{reader.where}, {name}: must come from outside the step region, because it does "
                "not change there"
            )
        if value is not None:
            pictures[name] = value if isinstance(value, Picture) else Picture.of(value)
    digests = [one.digest[:12] for one in pictures.values()]
    key = ":".join([*digests, short_digest((reader.model, vae)), *map(str, cells or ())])
    inputs = {"control_net": reader.model, **pictures, "cells": cells}
    return key, inputs if vae is None else {**inputs, "vae": vae}


def channels_once(reader: Reader) -> Hoisted | None:
    """Returns the extra input channels, if any, and the operation's part of the latent."""
    concatenated, part = reader.entry.concatenated, reader.part
    if concatenated is None:
        return None
    digests = short_digest(concatenated), reader.model_key
    key = ":".join([*digests, *map(str, astuple(part) if part else ())])
    return key, {"model": reader.model, "concatenated": concatenated, "part": part}


SEEN = "seen_"  # prefix of the inputs of a text encoder with rows of pictures
COMPUTE, EXAMPLES = (
    f"katz_graph.models.families.shared.{module}" for module in ("compute", "examples")
)
TEXT = Stage(
    "text_encoder",
    text_work,
    f"{COMPUTE}:text",
    f"{COMPUTE}:bind_text",
    f"{EXAMPLES}:text",
    module="encoding",
    once=encode_once,
    first=see_first,
    recorded=False,
    holds_weights=True,
    encodes_text=True,
    placeable=True,
)
VISION = Stage(
    "vision_encoder",
    vision_work,
    f"{COMPUTE}:vision",
    f"{COMPUTE}:bind_vision",
    f"{EXAMPLES}:vision",
    module="encoding",
    recorded=False,
    holds_weights=True,
    encodes_text=True,
    grain=16,  # 4 x 4 merged patches, a window of those towers that have windows
    placeable=True,
)
VAE_ENCODE, VAE_DECODE = (
    Stage(
        name,
        uncounted,
        f"{COMPUTE}:{name}",
        example=f"{EXAMPLES}:{name}",
        recorded=False,
        placeable=True,
        group="vae",
    )
    for name in ("vae_encode", "vae_decode")
)
WEIGH = Stage(
    "weigh",
    uncounted,
    f"{COMPUTE}:weigh",
    f"{COMPUTE}:bind_weigh",
    recipes=("mask",),
    rows=("strength",),
    gives=("prediction",),
)
STAGES = (VISION, TEXT, VAE_ENCODE, VAE_DECODE, WEIGH)
