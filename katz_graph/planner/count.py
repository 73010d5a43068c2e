"""Counts the work of operations from the configurations of their models: no weights are read and nothing is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from katz_graph.models.counts import Counts
from katz_graph.models.family import config
from katz_graph.models.text_recipe import prompts
from katz_graph.planner.program import Work
from katz_graph.planner.region import NODE, Operation, unknown_stage
from katz_graph.recipe import Component, Encoding, ModelRecipe

MODEL_STAGES = ("unet_encoder", "unet_mid", "unet_decoder", "controlnet", "controlnet_reference", "keys_values")
LITTLE = (NODE, "added_embedding", "concatenated")  # next to nothing beside these


def count_work(operation: Operation, shape: tuple[int, ...], tokens: int, value_bytes: int, counts: Counts) -> Work:
    """The work of one operation for a latent [B, C, h, w] and a text of so many tokens; nothing for what computes next to nothing.

    InputError for a stage that nobody counts.
    """
    batch, _, height, width = shape
    inputs = operation.inputs
    if operation.stage == "text_encoder":
        return _text_work(inputs["encoding"], tokens, value_bytes, counts)
    if operation.stage == "unet_wrapped":
        parts = (replace(operation, stage=stage) for stage in ("unet_encoder", "unet_mid", "unet_decoder"))
        return _total([count_work(part, shape, tokens, value_bytes, counts) for part in parts])
    if operation.stage in LITTLE:
        return Work()
    if operation.stage not in MODEL_STAGES:
        raise unknown_stage(operation)
    last = inputs.get("last_block", -1)
    return counts.work(
        config(_component(inputs)),
        operation.stage,  # type: ignore[arg-type]
        batch,
        height,
        width,
        tokens,
        inputs.get("first_block", 0),
        None if last == -1 else last,
        value_bytes,
    )


def _text_work(encoding: Encoding, tokens: int, value_bytes: int, counts: Counts) -> Work:
    encoders = [encoder.encoder for prompt in prompts(encoding) for encoder in prompt.clip.encoders]
    return _total([counts.work(config(encoder), "text_encoder", 1, 0, 0, tokens, value_bytes=value_bytes) for encoder in encoders])


def _total(works: Sequence[Work]) -> Work:
    return Work(
        flops=sum(work.flops for work in works),
        weight_bytes=sum(work.weight_bytes for work in works),
        activation_bytes=sum(work.activation_bytes for work in works),
        output_bytes=sum(work.output_bytes for work in works),
        kernels=sum(work.kernels for work in works),
    )


def _component(inputs: Mapping[str, Any]) -> Component:
    model = inputs.get("model") or inputs["control_net"]
    return model.unet if isinstance(model, ModelRecipe) else model.control_net
