"""Defines the patches that a model recipe carries besides weights: other sampling, other guidance,
FreeU, blocks that are passed over, and opaque functions of packs.

Frozen data, part of the recipe's digest. Nothing here computes: `planner/` and `executor/` read it,
each kind in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, TypeVar


@dataclass(frozen=True, slots=True)
class DiscreteSampling:
    """Gives the output of a model another meaning over its own noise table; rescaled with
    `zero_terminal_snr`, without it not.
    """

    prediction: Literal["eps", "v_prediction", "x0", "lcm"]
    zero_terminal_snr: bool = False


@dataclass(frozen=True, slots=True)
class ContinuousSampling:
    """Replaces the model's own noise table by noise levels from `sigma_min` to `sigma_max`."""

    prediction: Literal["eps", "v_prediction", "edm"]
    sigma_max: float
    sigma_min: float


@dataclass(frozen=True, slots=True)
class FlowSampling:
    """Makes the model a flow with `levels` noise levels that are shifted towards noise; it is told
    its level times `multiplier`.
    """

    shift: float
    levels: int = 1000
    multiplier: float = 1000.0


@dataclass(frozen=True, slots=True)
class FreeU:
    """Scales backbone and skips of the two deepest widths: four and two times the model's own (Si
    et al. 2024). Version 2 weighs the backbone by the mean map of each sample.
    """

    version: Literal[1, 2]
    b1: float
    b2: float
    s1: float
    s2: float


@dataclass(frozen=True, slots=True)
class RescaledGuidance:
    """Sets how much of the guided prediction has the conditional one's standard deviation (Lin et
    al. 2024).
    """

    multiplier: float


@dataclass(frozen=True, slots=True)
class NormedGuidance:
    """Shrinks the guided prediction, place by place, to the conditional one's norm over the
    channels, then multiplies it by `strength`.
    """

    strength: float


@dataclass(frozen=True, slots=True)
class NormedDifference:
    """Gives the guided x - denoised, place by place, the conditional one's norm over the channels,
    by the share `strength`.
    """

    strength: float


@dataclass(frozen=True, slots=True)
class ZeroStar:
    """Scales the negative side to what of it lies along the positive (Fan et al. 2025,
    "CFG-Zero*").
    """


@dataclass(frozen=True, slots=True)
class PassedOver:
    """Names blocks of a transformer that a side is computed without, within a window of the
    schedule (fractions), by their numbers in its chain of double blocks and in that of single ones.
    """

    double: tuple[int, ...]
    single: tuple[int, ...]
    start_percent: float
    end_percent: float


@dataclass(frozen=True, slots=True)
class WeakenedGuidance:
    """Adds `scale` times the difference to what the model predicts without some blocks, as guidance
    does to what it predicts without the text (Ahn et al. 2024, "Self-Rectifying Diffusion Sampling
    with Perturbed-Attention Guidance", with whole blocks). `rescaling`: how much of the result has
    the conditional prediction's standard deviation.
    """

    blocks: PassedOver
    scale: float
    rescaling: float = 0.0


@dataclass(frozen=True, slots=True)
class WeakenedNegative:
    """Computes the negative side without some blocks."""

    blocks: PassedOver


@dataclass(frozen=True, slots=True)
class GradualMask:
    """Repaints a place from the step on at which its mask is as large as the rest of the schedule
    (Levin and Fried 2023, "Differential Diffusion"). `strength` blends from the mask as it is, at
    0, to that, at 1.
    """

    strength: float


@dataclass(frozen=True, slots=True)
class OpaquePatch:
    """A function that a pack put on a model. Two are equal when their identities are, so these must
    be unique.

    `sampling/guidance.py` says what `cfg_function` and `post_cfg_function` take and return,
    the families' folders say it of `network_wrapper`. `needs_uncond`: the negative side is computed
    even at guidance 1.
    """

    kind: Literal["cfg_function", "post_cfg_function", "network_wrapper"]
    identity: str
    function: Callable[..., Any] = field(compare=False, repr=False)
    needs_uncond: bool = False


SamplingPatch = DiscreteSampling | ContinuousSampling | FlowSampling
GuidancePatch = RescaledGuidance | NormedDifference
AfterGuidance = NormedGuidance | ZeroStar | WeakenedGuidance
Patch = (
    SamplingPatch
    | FreeU
    | GuidancePatch
    | AfterGuidance
    | WeakenedNegative
    | GradualMask
    | OpaquePatch
)
P = TypeVar("P", bound=Patch)


def sampling_patch(patches: Iterable[Patch]) -> SamplingPatch | None:
    """Returns the sampling patch; the last one counts, as in ComfyUI."""
    return _last(patch for patch in patches if isinstance(patch, SamplingPatch))


def gradual_mask(patches: Iterable[Patch]) -> GradualMask | None:
    """Returns the patch of a latent's mask; the last one counts."""
    return _last(patch for patch in patches if isinstance(patch, GradualMask))


def guidance_patch(patches: Iterable[Patch]) -> GuidancePatch | OpaquePatch | None:
    """Returns the patch in place of plain guidance; the last one counts."""
    return _last(
        patch for patch in patches if isinstance(patch, GuidancePatch) or _is_cfg_function(patch)
    )


def post_guidance_patches(patches: Iterable[Patch]) -> tuple[AfterGuidance | OpaquePatch, ...]:
    """Returns the patches after guidance, in order."""
    return tuple(
        patch
        for patch in patches
        if isinstance(patch, AfterGuidance)
        or (isinstance(patch, OpaquePatch) and patch.kind == "post_cfg_function")
    )


def weakened_guidance(patches: Iterable[Patch]) -> tuple[WeakenedGuidance, ...]:
    """Returns the patches that need a further side. All count, in order."""
    return tuple(patch for patch in patches if isinstance(patch, WeakenedGuidance))


def weakened_negative(patches: Iterable[Patch]) -> WeakenedNegative | None:
    """Returns the patch of the negative side; the last one counts."""
    return _last(patch for patch in patches if isinstance(patch, WeakenedNegative))


def network_wrapper(patches: Iterable[Patch]) -> OpaquePatch | None:
    """Returns the patch that calls the network; the last one counts."""
    return _last(patch for patch in opaque_patches(patches) if patch.kind == "network_wrapper")


def freeu_patches(patches: Iterable[Patch]) -> tuple[FreeU, ...]:
    """Returns the FreeU patches. All count, in order."""
    return tuple(patch for patch in patches if isinstance(patch, FreeU))


def opaque_patches(patches: Iterable[Patch]) -> tuple[OpaquePatch, ...]:
    """Returns the functions that only this process has."""
    return tuple(patch for patch in patches if isinstance(patch, OpaquePatch))


def needs_uncond(patches: Iterable[Patch]) -> bool:
    """Tells whether a patch wants the negative side even at guidance 1."""
    return any(
        patch.needs_uncond or patch.kind == "cfg_function" for patch in opaque_patches(patches)
    )


def _is_cfg_function(patch: Patch) -> TypeGuard[OpaquePatch]:
    return isinstance(patch, OpaquePatch) and patch.kind == "cfg_function"


def _last(patches: Iterable[P]) -> P | None:
    found = list(patches)
    return found[-1] if found else None
