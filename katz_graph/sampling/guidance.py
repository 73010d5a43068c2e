"""Applies guidance to denoised predictions: classifier-free guidance, its rescaled variants, and
functions of packs.

Must not know live models or nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.patches import (
    NormedDifference,
    NormedGuidance,
    OpaquePatch,
    RescaledGuidance,
    SkipLayerGuidance,
    ZeroStar,
    guidance_patch,
    post_guidance_patches,
)
from katz_graph.core.recipe import ModelRecipe
from katz_graph.ir.values import Step, per_row

MIN_SPREAD = 1e-8  # minimum norm or standard deviation of a prediction, to avoid division by zero


def guided(cond: Tensor, uncond: Tensor, guidance: float, base: Tensor | None = None) -> Tensor:
    """Returns base + (cond - uncond) · guidance; base defaults to uncond (Ho and Salimans 2022)."""
    return (uncond if base is None else base) + (cond - uncond) * guidance


def rescaled(
    cond: Tensor,
    uncond: Tensor,
    guidance: float,
    multiplier: float,
    step: Step,
    on_flow: bool = False,
) -> Tensor:
    """Applies guidance, and rescales each sample, by the share `multiplier`, to the standard
    deviation of the conditional v-prediction (Lin et al. 2024, "Common Diffusion Noise Schedules
    and Sample Steps are Flawed", equations 14 to 16). On a flow, uses denoised predictions instead
    of v-predictions, as in the ecosystem.
    """
    if multiplier == 0.0:
        return guided(cond, uncond, guidance)
    if on_flow:
        whole = guided(cond, uncond, guidance)
        axes = tuple(range(1, whole.ndim))
        spread = whole.std(dim=axes, keepdim=True).clamp(min=MIN_SPREAD)
        ratio = cond.std(dim=axes, keepdim=True) / spread
        return whole * (multiplier * ratio + (1 - multiplier))
    variance = step.sigma**2 + 1
    scale = per_row(variance.sqrt() / step.sigma, cond)
    centre = step.x / per_row(variance, step.x)
    v_cond, v_uncond = (centre - cond) * scale, (centre - uncond) * scale
    v = guided(v_cond, v_uncond, guidance)
    axes = tuple(range(1, v.ndim))
    ratio = v_cond.std(dim=axes, keepdim=True) / v.std(dim=axes, keepdim=True)
    return centre - v * (multiplier * ratio + (1 - multiplier)) / scale


def normed(denoised: Tensor, cond: Tensor, strength: float) -> Tensor:
    """Limits a guided prediction's norm over channels, at each cell, to the conditional
    prediction's, and multiplies by `strength`.
    """
    ratio = _norm(cond) / (_norm(denoised) + MIN_SPREAD)
    return denoised * ratio.clamp(max=1.0) * strength


def normed_difference(
    cond: Tensor, uncond: Tensor, guidance: float, strength: float, step: Step
) -> Tensor:
    """Applies guidance, and rescales x - denoised at each cell, by the share `strength`, to the
    conditional one's norm over channels.
    """
    difference = step.x - guided(cond, uncond, guidance)
    wanted, given = _norm(step.x - cond), _norm(difference)
    ratio = torch.where(given > 0, wanted / given.clamp(min=1e-12), 1.0)
    return step.x - difference * (strength * ratio + (1 - strength))


def zero_star(
    denoised: Tensor, cond: Tensor, uncond: Tensor, guidance: float, step: Step
) -> Tensor:
    """Rescales the negative prediction in a guided one by s = <v, u> / |u|², where v and u are the
    positive and negative x - denoised of each sample (Fan et al. 2025, "CFG-Zero*", equation 8). As
    in the ecosystem, scales the denoised prediction.
    """
    v, u = step.x - cond, step.x - uncond
    axes = tuple(range(1, v.ndim))
    share = (v * u).sum(dim=axes, keepdim=True) / (
        u.square().sum(dim=axes, keepdim=True) + MIN_SPREAD
    )
    return denoised + (guidance - 1) * (1 - share) * uncond


def away_from(
    denoised: Tensor, cond: Tensor, weakened: Tensor, scale: float, rescaling: float
) -> Tensor:
    """Returns denoised + (cond - weakened) · scale, rescaled by the share `rescaling` to each
    sample's standard deviation of the conditional prediction.
    """
    result = denoised + (cond - weakened) * scale
    if rescaling == 0.0:
        return result
    axes = tuple(range(1, result.ndim))
    spread = result.std(dim=axes, keepdim=True).clamp(min=MIN_SPREAD)
    return result * (rescaling * cond.std(dim=axes, keepdim=True) / spread + (1 - rescaling))


def _norm(prediction: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(prediction, dim=1, keepdim=True)
    return norm


def patched_guidance(
    model: ModelRecipe,
    step: Step,
    cond: Tensor,
    uncond: Tensor | None,
    guidance: float,
    on_flow: bool = False,
    weakened: Sequence[Tensor | None] = (),
) -> Tensor:
    """Applies guidance as a model's patches define it. Without a negative prediction, starts from
    the conditional one. `weakened` holds, for each patch that guides away from a prediction without
    some blocks, that prediction; None outside the patch's window.

    A pack's cfg function gets both predictions as x - denoised (`cond`, `uncond`) and denoised
    (`cond_denoised`, `uncond_denoised`; zeros if negative is absent), with `cond_scale`, `input`
    (x), `sigma` and `timestep` (σ [B]); it returns x - denoised. A post-cfg function gets
    `denoised`, the result of guidance, instead of the differences, and returns the new result.
    Raises InputError if a function returns anything but a tensor of the same shape.
    """
    zeros = torch.zeros_like(cond) if uncond is None else uncond
    known = _known(model, step, cond, zeros, guidance)
    match guidance_patch(model.patches):
        case OpaquePatch() as patch:
            denoised = step.x - _called(
                patch, {"cond": step.x - cond, "uncond": step.x - zeros, **known}, cond
            )
        case RescaledGuidance(multiplier) if uncond is not None:
            denoised = rescaled(cond, uncond, guidance, multiplier, step, on_flow)
        case NormedDifference(strength) if uncond is not None:
            denoised = normed_difference(cond, uncond, guidance, strength, step)
        case _:
            denoised = cond if uncond is None else guided(cond, uncond, guidance)
    further = iter(weakened)
    for after in post_guidance_patches(model.patches):
        match after:
            case OpaquePatch():
                denoised = _called(after, {"denoised": denoised, **known}, cond)
            case NormedGuidance(strength):
                denoised = normed(denoised, cond, strength)
            case ZeroStar() if uncond is not None:
                denoised = zero_star(denoised, cond, uncond, guidance, step)
            case SkipLayerGuidance(_, scale, rescaling) if (one := next(further, None)) is not None:
                denoised = away_from(denoised, cond, one, scale, rescaling)
    return denoised


def _known(
    model: ModelRecipe, step: Step, cond: Tensor, uncond: Tensor, guidance: float
) -> dict[str, Any]:
    sigma = step.sigma.to(step.x.dtype)
    return {
        "cond_denoised": cond,
        "uncond_denoised": uncond,
        "cond_scale": guidance,
        "timestep": sigma,
        "sigma": sigma,
        "input": step.x,
        "model": model,
        "model_options": {"transformer_options": {}},
    }


def _called(patch: OpaquePatch, arguments: dict[str, Any], like: Tensor) -> Tensor:
    result = patch.function(arguments)
    if not isinstance(result, Tensor) or result.shape != like.shape:
        got = list(result.shape) if isinstance(result, Tensor) else f"a {type(result).__name__}"
        raise InputError(
            f"the {patch.kind} {patch.identity} returned {got}, expected a tensor of "
            f"{list(like.shape)}"
        )
    return result
