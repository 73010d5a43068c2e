"""Declares the stages that families share: text encoding, VAE encode and decode, and the weighting
of regional predictions. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.ir.device import Work
from katz_graph.models.configuration import config
from katz_graph.models.costs.sums import total
from katz_graph.models.stages import Extent, Stage, WorkCounts, uncounted
from katz_graph.models.text.recipe import prompts


def text_work(inputs: Mapping[str, Any], extent: Extent, counts: WorkCounts) -> Work:
    encoders = [
        (encoder.encoder, prompt.clip.layout.length(number) or extent.tokens)
        for prompt in prompts(inputs["encoding"])
        for number, encoder in enumerate(prompt.clip.encoders)
    ]
    works = [
        counts.work(
            config(encoder), "text_encoder", 1, 0, 0, tokens, value_bytes=extent.value_bytes
        )
        for encoder, tokens in encoders
    ]
    return total(works)


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
    recorded=False,
    holds_weights=True,
    encodes_text=True,
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
STAGES = (TEXT, VAE_ENCODE, VAE_DECODE, WEIGH)
