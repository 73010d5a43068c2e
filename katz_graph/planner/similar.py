"""Lets a request begin from the picture of an earlier request with a similar prompt (Agarwal et al.
2024, "Approximate Caching for Efficiently Serving Text-to-Image Diffusion Models"): derives the key
that both must share, and rewrites the region so that it begins later.

The paper stores the latents of several evaluations. Here only the final latent is stored, and gets
the noise of the request's own seed (Meng et al. 2022, "SDEdit"), which preserves less of the other
prompt.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.recipe import Encoding, Prompt, digest, tensor_digest
from katz_graph.ir.program import EvaluationPoint
from katz_graph.ir.region import CROP, Region, SimilarStart
from katz_graph.planner.request_key import part_of_key
from katz_graph.planner.sampling import evaluations_of, sampling_of
from katz_graph.sampling.spec import DiffusersSpec

OWN_INPUTS = ("seed", "latent_image")  # of the begin; keys have a digest of the latent
OF_NETWORKS = {"model", "control_net", "image"}  # inputs of operations with weights


@dataclass(frozen=True, slots=True)
class SimilarRequest:
    """Describes a request that may begin from the picture of another one."""

    key: str  # equal requests differ in own text and seed only
    scale: str  # requests whose similarities are comparable: key of a measured table
    text: Encoding  # whose similarity counts
    sigmas: tuple[float, ...]  # [N + 1], falling
    levels: tuple[float, ...]  # [N]: relative to the picture
    schedule: tuple[EvaluationPoint, ...]

    def saved(self, step: int) -> int:
        """Returns the number of evaluations before a step."""
        return sum(point.step < step for point in self.schedule)

    def step_at(self, level: float) -> int:
        """Returns the last step that begins at this relative noise level or above; 0 if none."""
        return max((step for step, own in enumerate(self.levels) if own >= level), default=0)


def similar_request(region: Region, dtype: str) -> SimilarRequest | str:
    """Returns the request as others may be similar to it, or the reason why it must run in full.
    `dtype`: the model's.
    """
    begin = region.begin
    if (why := _why_none(region)) is not None:
        return why
    spec, table = sampling_of(begin)
    if isinstance(spec, DiffusersSpec):
        return "DiffusersSampler has no noise levels"
    if not spec.add_noise:
        return "the sampler adds no noise"
    if len(spec.sigmas) < 3 or spec.sigmas[-1] != 0:
        return "the sampler does not end with a picture, or has one step"
    if [*spec.sigmas] != sorted(spec.sigmas, reverse=True):
        return "its noise levels do not fall"
    texts: list[tuple[str, Encoding]] = []
    operations = [part_of_key(one, texts) for one in region.operations]
    distinct = [*dict.fromkeys(text for _, text in texts)]
    if len(distinct) != 1:
        return "it has no positive prompt" if not distinct else "it has several positive prompts"
    (text,) = distinct
    samples: Tensor = begin.inputs["latent_image"]["samples"]
    facts = {name: one for name, one in begin.inputs.items() if name not in OWN_INPUTS}
    sampler, encoders = (spec.sampler, spec.options, spec.sigmas), _textless(text)
    key = (part_of_key(replace(begin, inputs=facts), []), sampler, tensor_digest(samples), dtype)
    model = replace(begin.inputs["model"], loras=())
    combined = [one for one in operations if not {*dict(one[-1])} & OF_NETWORKS]
    scale = model, tuple(samples.shape[2:]), combined, _without_loras(encoders)
    relative = table.path.relative(torch.tensor(spec.sigmas[:-1], dtype=torch.float64))
    return SimilarRequest(
        digest((key, operations, encoders)),
        digest(scale),
        text,
        spec.sigmas,
        tuple(relative.tolist()),
        evaluations_of(spec, table),
    )


def _why_none(region: Region) -> str | None:
    begin = region.begin
    if begin.inputs["latent_image"].get("noise_mask") is not None:
        return "the latent has a mask"
    if region.template is not None:
        return "its model has an EditTemplate"
    for one in (*region.operations, region.end):
        if one.type == CROP or isinstance(one.inputs.get("mask"), Tensor):
            return "its conditioning has areas"
        if one.stage == "step_pattern":
            return "StepPattern counts the evaluations before"
        if any(True for _ in one.slots()):
            return "it passes values from one evaluation to the next"
        if any(_has_mask(entry) for entry in one.inputs.get("conditioning") or ()):
            return "its model repaints under a mask"
    return None


def _has_mask(entry: Any) -> bool:
    return entry.concatenated is not None and entry.concatenated.mask is not None


def _textless(encoding: Any) -> Any:
    """Returns an encoding's recipe with empty texts: the way in which it encodes."""
    if isinstance(encoding, Prompt):
        return replace(encoding, text="", further=tuple("" for _ in encoding.further))
    if not is_dataclass(encoding) or isinstance(encoding, type):
        return encoding
    parts = [getattr(encoding, one.name) for one in fields(encoding) if one.compare]
    return type(encoding).__name__, *(_textless(part) for part in parts)


def _without_loras(encoders: Any) -> Any:
    if isinstance(encoders, Prompt):
        return replace(encoders, clip=replace(encoders.clip, loras=()))
    return tuple(map(_without_loras, encoders)) if isinstance(encoders, tuple) else encoders


def started_at(region: Region, latent: Tensor, step: int, start: SimilarStart) -> Region:
    """Returns a region without the steps before `step`. It begins from a picture's latent
    [B, C, h, w], unscaled, with noise from the region's seed.
    """
    begin = region.begin
    inputs: dict[str, Any] = {
        **begin.inputs,
        "latent_image": {**begin.inputs["latent_image"], "samples": latent},
    }
    if begin.type == "SigmasStepBegin":
        inputs["sigmas"] = inputs["sigmas"][step:]
    else:
        inputs["start_at_step"] += step
    return replace(region, begin=replace(begin, inputs=inputs), similar=start)
