"""Derives from a masked request the template whose activations it may read: the key by which a
store finds it, and the request that fills it.

Where the mask is 0, the model's input is the original at the evaluation's noise level, whatever the
sampler did. So a request with an empty mask evaluates the template itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.messages import shorten
from katz_graph.core.patches import gradual_mask, opaque_patches
from katz_graph.core.recipe import (
    Concatenated,
    ConditioningEntry,
    EditTemplate,
    Encoding,
    ModelRecipe,
    Picture,
    Prompt,
    digest,
    tensor_digest,
)
from katz_graph.ir.program import EvaluationPoint
from katz_graph.ir.region import Operation, Region
from katz_graph.models.active import MARGIN, MAX_NOISE
from katz_graph.models.stages import NODE
from katz_graph.planner.request_key import part_of_key, reads_own_text
from katz_graph.sampling.areas import fit_mask
from katz_graph.sampling.path import Path

DIGITS = 24  # of each half of a name
MAX_TEXT = 200  # characters of a text in the details


@dataclass(frozen=True, slots=True)
class TemplateRequest:
    """Describes the template of a request. Templates whose names begin with `prefix` differ in
    the positive text only.
    """

    prefix: str
    name: str
    exact: bool  # only this name will do, because the request says what the template is
    fills: Region  # computes the activations
    mask: Tensor  # [B, 1, h, w], of the request's latent
    margin: int  # cells around the mask whose tokens are computed too
    sigmas: tuple[float, ...]  # the template's noise levels
    numbers: tuple[int, ...]  # by evaluation: its noise level; -1: all tokens are computed
    details: Mapping[str, str]  # readable parts of the key


def template_request(
    region: Region, schedule: Sequence[EvaluationPoint], path: Path, dtype: str
) -> TemplateRequest | str:
    """Returns the template of a request, or the reason why it has none. `path`: of the noise
    levels; `dtype`: the model's.
    """
    begin = region.begin
    latent: Mapping[str, Any] = begin.inputs["latent_image"]
    given: EditTemplate | None = region.template
    if (why := _why_none(begin, latent)) is not None:
        return why
    mask = fit_mask(latent["noise_mask"], latent["samples"].float())
    samples = latent["samples"] if given is None else _fitted(given, latent["samples"])
    every = dict.fromkeys(point.sigma for point in schedule)
    sigmas = tuple(sigma for sigma in every if not _is_noise(sigma, path))
    if not sigmas:
        return "all evaluations are at noise levels that are computed in full"
    read = {operation.id for operation in _read_by_network(region)}
    operations = tuple(
        _of_template(operation, samples, mask, given) if operation.id in read else operation
        for operation in region.operations
    )
    fills = replace(
        region,
        begin=replace(
            begin,
            inputs={
                **begin.inputs,
                "latent_image": {
                    **latent,
                    "samples": samples,
                    "noise_mask": torch.zeros_like(mask),
                },
            },
        ),
        operations=operations,
    )
    texts: list[tuple[str, Encoding]] = []
    read_by_network = [part_of_key(one, texts) for one in operations if one.id in read]
    facts = (
        begin.inputs["model"],
        tensor_digest(samples),
        sigmas,
        begin.inputs["add_noise"],  # without, the model sees the original without noise
        dtype,
        read_by_network,
    )
    prefix = digest(facts)[:DIGITS]
    name = f"{prefix}-{digest(texts)[:DIGITS]}"
    known = {sigma: number for number, sigma in enumerate(sigmas)}
    numbers = tuple(known.get(point.sigma, -1) for point in schedule)
    return TemplateRequest(
        prefix,
        name,
        given is not None,
        fills,
        mask,
        MARGIN if given is None else given.margin,
        sigmas,
        numbers,
        _details(begin.inputs["model"], samples, sigmas, dtype, texts),
    )


def _is_noise(sigma: float, path: Path) -> bool:
    """Returns whether hardly anything of the picture shows at a noise level."""
    return float(path.relative(torch.tensor(sigma, dtype=torch.float64))) > MAX_NOISE


def _details(
    model: ModelRecipe,
    samples: Tensor,
    sigmas: Sequence[float],
    dtype: str,
    texts: Sequence[tuple[str, Encoding]],
) -> Mapping[str, str]:
    """Returns the readable parts of a key, for lists of templates."""
    prompts = [encoding.text for _, encoding in texts if isinstance(encoding, Prompt)]
    return {
        "model": model.network.folder.rstrip("/").rpartition("/")[2],
        "cells": "x".join(map(str, reversed(samples.shape[-2:]))),
        "levels": str(len(sigmas)),
        "dtype": dtype,
        "loras": str(len(model.loras)),
        "text": shorten("; ".join(dict.fromkeys(prompts)), MAX_TEXT),
    }


def _why_none(begin: Operation, latent: Mapping[str, Any]) -> str | None:
    if latent.get("noise_mask") is None:
        return "the latent has no mask"
    if begin.inputs["model"].latent.frames:
        return "all tokens of latents with frames are computed"
    if gradual_mask(begin.inputs["model"].patches) is not None:
        return "DifferentialDiffusion repaints the whole picture in the end"
    if opaque_patches(begin.inputs["model"].patches):
        return "a pack put a function on the model, which a later run cannot compare"
    return None


def _read_by_network(region: Region) -> Iterator[Operation]:
    """Yields the operations with weights, and those whose outputs they read."""
    wanted: set[str] = set()
    for operation in reversed(region.operations):
        if operation.id in wanted or (operation.stage != NODE and _has_model(operation)):
            wanted |= {ref.operation for _, ref in operation.references()}
            yield operation


def _has_model(operation: Operation) -> bool:
    return "model" in operation.inputs or "control_net" in operation.inputs


def _fitted(template: EditTemplate, samples: Tensor) -> Tensor:
    """Returns a template's latent. Raises InputError if its size is not that of `samples`."""
    found = template.latent.pixels
    if len(found) == 1:
        found = found.expand(len(samples), -1, -1, -1)
    if found.shape != samples.shape:
        raise InputError(
            f"EditTemplate: its latent is {list(found.shape)}, the sampler's "
            f"{list(samples.shape)}: encode a picture of the same size"
        )
    return found


def _of_template(
    operation: Operation, samples: Tensor, mask: Tensor, given: EditTemplate | None
) -> Operation:
    """Removes the edit from an operation: blanks a ControlNet's picture under the mask, shows an
    inpainting model the original, and takes the texts of `given`.
    """
    inputs = dict(operation.inputs)
    if isinstance(inputs.get("image"), Picture):
        inputs["image"] = _blanked(inputs["image"], mask)
    if "conditioning" in inputs:
        entries: Sequence[ConditioningEntry] = inputs["conditioning"]
        if given is not None:
            side = given.positive if reads_own_text(operation) else given.negative
            if side:
                entries = [replace(entry, encoding=side[0].encoding) for entry in entries]
        inputs["conditioning"] = tuple(_original(entry, samples) for entry in entries)
    return replace(operation, inputs=inputs)


def _blanked(picture: Picture, mask: Tensor) -> Picture:
    pixels = picture.pixels
    covered = torch.nn.functional.interpolate(
        mask.amax(dim=0, keepdim=True), size=pixels.shape[1:3], mode="nearest"
    )
    return Picture.of(pixels * (covered[0, 0, ..., None] == 0))


def _original(entry: ConditioningEntry, samples: Tensor) -> ConditioningEntry:
    seen = entry.concatenated
    if seen is None or seen.mask is None:
        return entry
    empty = Picture.of(torch.zeros_like(seen.mask.pixels))
    return replace(entry, concatenated=Concatenated(Picture.of(samples), empty))
