"""Reads sampling data from a region's StepBegin: the sampler's specification, its evaluations, the
evaluations inside a window, and the answers to conditions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from katz_graph.core.errors import InputError
from katz_graph.core.patches import FreeU, OpaquePatch, gradual_mask, sampling_patch
from katz_graph.core.recipe import ModelRecipe
from katz_graph.ir.program import EvaluationPoint
from katz_graph.ir.region import Operation
from katz_graph.ir.values import FLOWS, Evaluation
from katz_graph.models.configuration import scheduler_config
from katz_graph.models.family import family_of
from katz_graph.models.stages import Loop
from katz_graph.planner.passes.variants import Decide
from katz_graph.sampling.names import SamplerChoice
from katz_graph.sampling.noise_table import NoiseTable, altered_table, noise_table
from katz_graph.sampling.samplers import evaluations, solver_of
from katz_graph.sampling.schedules import schedule, slice_steps
from katz_graph.sampling.spec import DiffusersSpec, SamplingSpec, Spec

if TYPE_CHECKING:
    import torch


def table_of(model: ModelRecipe) -> NoiseTable:
    """Returns a model's noise levels and parametrisation: as trained, or as set by a patch."""
    patch = sampling_patch(model.patches)
    return (
        noise_table(scheduler_config(model), family_of(model.network).training.multiplier)
        if patch is None
        else altered_table(scheduler_config(model), patch)
    )


@lru_cache(maxsize=16)
def predicts_flow(model: ModelRecipe) -> bool:
    """Returns whether a model predicts a flow's velocity: as trained, or as set by a patch."""
    return table_of(model).parametrisation in FLOWS


def loop_of(begin: Operation, shape: tuple[int, ...], dtype: torch.dtype) -> Loop:
    """Returns the facts from which stages derive arguments (`Stage.bind`), read from the begin
    operation and its model. `dtype`: the model's.
    """
    model: ModelRecipe = begin.inputs["model"]
    raw = begin.type == "DiffusersStepBegin"
    parametrisation = "raw" if raw else table_of(model).parametrisation
    return Loop(shape, dtype, model.latent, parametrisation, table_of)


def sampling_of(begin: Operation) -> tuple[Spec, NoiseTable]:
    """Returns the sampler specification of a begin operation, and the noise table of its model."""
    values = begin.inputs
    table, latent = table_of(values["model"]), values["latent_image"]
    if begin.type == "DiffusersStepBegin":
        _check_diffusers(values["model"], latent)
        return _diffusers_spec(values, scheduler_config(values["model"])), table
    if begin.type == "SigmasStepBegin":
        sampler, sigmas = values["sampler"], tuple(values["sigmas"].float().tolist())
    else:
        sampler = SamplerChoice(values["sampler_name"])
        sigmas = schedule(
            values["scheduler"], table, values["steps"], values["denoise"], values["sampler_name"]
        )
        sigmas = slice_steps(
            sigmas,
            values["start_at_step"],
            values["end_at_step"],
            not values["return_with_leftover_noise"],
        )
    batch_index, gradual = latent.get("batch_index"), gradual_mask(values["model"].patches)
    return SamplingSpec(
        sampler=sampler.name,
        options=sampler.options,
        sigmas=sigmas,
        seed=values["seed"],
        add_noise=values["add_noise"],
        mask=latent.get("noise_mask"),
        gradual=None if gradual is None else gradual.strength,
        batch_index=None if batch_index is None else tuple(batch_index),
    ), table


def _check_diffusers(model: ModelRecipe, latent: Mapping[str, Any]) -> None:
    """Raises InputError for a flow, noise mask, batch index or patch. Diffusers schedulers ignore
    these, because they have no denoised predictions or noise levels.
    """
    for field in ("noise_mask", "batch_index"):
        if latent.get(field) is not None:
            raise InputError(
                f"DiffusersSampler: the latent has a {field}, which only KSampler supports; use "
                "KSampler"
            )
    if predicts_flow(model):
        raise InputError(
            f"DiffusersSampler: the model in {model.network.folder} is a flow, which this node "
            "does not support; use KSampler"
        )
    patch = next((patch for patch in model.patches if not isinstance(patch, FreeU)), None)
    if patch is not None:
        name = patch.identity if isinstance(patch, OpaquePatch) else type(patch).__name__
        raise InputError(
            f"DiffusersSampler: the model has a patch ({name}), which only KSampler supports; use "
            "KSampler"
        )


def _diffusers_spec(values: Any, trained: dict[str, Any]) -> DiffusersSpec:
    try:
        config = json.loads(values["scheduler_config"] or "{}")
    except json.JSONDecodeError as error:
        raise InputError(f"DiffusersSampler: scheduler_config is not JSON: {error}") from None
    if not isinstance(config, dict):
        raise InputError(
            f"DiffusersSampler: scheduler_config must be a JSON object, not {type(config).__name__}"
        )
    return DiffusersSpec(
        values["scheduler_class"],
        values["steps"],
        values["seed"],
        trained | config,
        values["strength"],
    )


def decider(spec: Spec, table: NoiseTable) -> Decide:
    """Returns a function that answers StepPattern and StepWindow for an evaluation."""

    @cache
    def window(start_percent: float, end_percent: float) -> tuple[bool, ...]:
        return active_evaluations(spec, table, start_percent, end_percent)

    def decide(operation: Operation, point: EvaluationPoint) -> bool:
        inputs = operation.inputs
        if operation.stage == "step_window":
            return window(inputs["start_percent"], inputs["end_percent"])[point.index]
        last = inputs["last"]
        within: bool = inputs["first"] <= point.index and (last < 0 or point.index <= last)
        return (
            within
            and point.index >= inputs["offset"]
            and (point.index - inputs["offset"]) % inputs["every"] == 0
        )

    return decide


def evaluations_of(spec: Spec, table: NoiseTable) -> tuple[Evaluation, ...]:
    """Returns all evaluations of the run, in order."""
    if isinstance(spec, DiffusersSpec):
        from katz_graph.sampling.diffusers_process import prepare_scheduler  # loads diffusers

        return prepare_scheduler(spec).evaluations
    return evaluations(solver_of(spec.choice, spec.sigmas, table.path).sampler, spec.sigmas)


def active_evaluations(
    spec: Spec, table: NoiseTable, start_percent: float, end_percent: float
) -> tuple[bool, ...]:
    """Returns, for each evaluation, whether it lies in a window (of a ControlNet, or a
    conditioning's range).

    Our samplers compare noise levels: sigma(end) <= sigma <= sigma(start). Diffusers schedulers
    count, like their ControlNet pipelines: off if i / N < start or (i + 1) / N > end.
    """
    known = evaluations_of(spec, table)
    if isinstance(spec, DiffusersSpec):
        count = len(known)
        return tuple(
            not (i / count < start_percent or (i + 1) / count > end_percent) for i in range(count)
        )
    first, last = table.percent_to_sigma(start_percent), table.percent_to_sigma(end_percent)
    return tuple(last <= evaluation.sigma <= first for evaluation in known)
