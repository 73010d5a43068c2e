"""Runs a UNet through a pack's wrapper function, which may call it any number of times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.patches import OpaquePatch
from katz_graph.ir.values import Step, TextEncoding
from katz_graph.sampling.noise_table import NoiseTable
from katz_graph.sampling.prediction import scale_model_input

Predict = Callable[[Step, TextEncoding, Any], Tensor]
"""Maps step, text, and cross-attention keys and values (or None) to the denoised prediction."""


def call_wrapper(
    wrapper: OpaquePatch,
    predict: Predict,
    step: Step,
    text: TextEncoding,
    cached: Any,
    sides: Sequence[int],
    table: NoiseTable,
) -> Tensor:
    """Returns the denoised prediction [B, C, h, w] of the wrapper, called as `wrapper(apply_model,
    {input, timestep, c, cond_or_uncond})`.

    `apply_model(x, timestep, **c)` takes a latent in sigma space, one σ for all rows, and text as
    `c_crossattn`, and returns the denoised prediction. It ignores other keys of `c`. `sides`: 0
    (positive) or 1 (negative) for each conditioning entry in the batch. Raises InputError for a
    result of another shape or type.
    """
    name = f"the network_wrapper {wrapper.identity}"

    def apply_model(
        x: Tensor, timestep: Tensor, c_crossattn: Tensor | None = None, **_: Any
    ) -> Tensor:
        if x.shape != step.x.shape:
            raise InputError(
                f"{name} called the model with a latent of shape {list(x.shape)}, expected "
                f"{list(step.x.shape)}"
            )
        level = float(timestep.flatten()[0])
        if bool((timestep != level).any()):
            raise InputError(
                f"{name} called the model with several noise levels at once, expected one"
            )
        if c_crossattn is None or c_crossattn is text.hidden:
            return predict(_at(step, x, level, table), text, cached)
        return predict(_at(step, x, level, table), replace(text, hidden=c_crossattn), None)

    sigma = step.sigma.to(step.x.dtype)
    c = {
        "c_crossattn": text.hidden,
        "transformer_options": {"cond_or_uncond": list(sides), "sigmas": sigma},
    }
    result = wrapper.function(
        apply_model, {"input": step.x, "timestep": sigma, "c": c, "cond_or_uncond": list(sides)}
    )
    if not isinstance(result, Tensor) or result.shape != step.x.shape:
        got = list(result.shape) if isinstance(result, Tensor) else f"a {type(result).__name__}"
        raise InputError(f"{name} returned {got}, expected a tensor of {list(step.x.shape)}")
    return result


def _at(step: Step, x: Tensor, sigma: float, table: NoiseTable) -> Step:
    """Returns the step with another latent, or at another noise level."""
    own = float(step.sigma[0])
    # compared as float32, the wrapper's dtype
    same_level = torch.tensor(sigma) == torch.tensor(own)
    if x is step.x and same_level:
        return step
    scaled = scale_model_input(x, own if same_level else sigma, table.parametrisation).to(
        step.model_input.dtype
    )
    return (
        replace(step, x=x, model_input=scaled)
        if same_level
        else Step.of(x, scaled, sigma, table.timestep_at(sigma))
    )
