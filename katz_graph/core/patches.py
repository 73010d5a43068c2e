"""Defines the patches of a model recipe other than weights: sampling, guidance, FreeU, skipped
blocks and opaque functions of packs.

Patches are frozen data and part of the recipe's digest. `planner/`, `sampling/` and the model
families implement them, each kind in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, TypeVar

from katz_graph.core.added_fields import ADDED, Growing


@dataclass(frozen=True, slots=True)
class DiscreteSampling:
    """Replaces the parametrisation of the model's output over its own noise table, rescaled to zero
    terminal SNR if `zero_terminal_snr`.
    """

    prediction: Literal["eps", "v_prediction", "x0", "lcm"]
    zero_terminal_snr: bool = False


@dataclass(frozen=True, slots=True)
class ContinuousSampling:
    """Replaces the model's noise table by noise levels from `sigma_min` to `sigma_max`."""

    prediction: Literal["eps", "v_prediction", "edm"]
    sigma_max: float
    sigma_min: float


@dataclass(frozen=True, slots=True, repr=False)
class FlowSampling(Growing):
    """Runs the model as a flow with `levels` noise levels, shifted towards noise. The model's
    timestep is the level times `multiplier`. `between_pictures`: the flow leads from the given
    picture, in place of noise, to another one, which the model predicts in one step.
    """

    shift: float
    levels: int = 1000
    multiplier: float = 1000.0
    between_pictures: bool = field(default=False, metadata=ADDED)


@dataclass(frozen=True, slots=True)
class FreeU:
    """Scales backbone and skip features where the backbone has four times or twice the first
    block's width (Si et al. 2024). Version 2 weights the backbone by each sample's mean map.
    """

    version: Literal[1, 2]
    b1: float
    b2: float
    s1: float
    s2: float


@dataclass(frozen=True, slots=True)
class RescaledGuidance:
    """Blends the guided prediction with a copy rescaled to the conditional prediction's standard
    deviation (Lin et al. 2024). `multiplier`: weight of the copy.
    """

    multiplier: float


@dataclass(frozen=True, slots=True)
class NormedGuidance:
    """Shrinks the guided prediction, per cell, to the conditional prediction's channel norm, then
    multiplies it by `strength`.
    """

    strength: float


@dataclass(frozen=True, slots=True)
class NormedDifference:
    """Rescales the difference x - denoised of the guided prediction, per cell, to the channel norm
    of the conditional difference. `strength`: weight of the rescaled difference.
    """

    strength: float


@dataclass(frozen=True, slots=True)
class ZeroStar:
    """Scales the negative prediction by its projection onto the positive (Fan et al. 2025,
    "CFG-Zero*").
    """


@dataclass(frozen=True, slots=True)
class WholeSequence:
    """Computes the tokens before the picture in every evaluation, although no step changes them."""


@dataclass(frozen=True, slots=True)
class SkippedBlocks:
    """Lists the transformer blocks, by number in the double and single chains, that a prediction
    skips within a window of the schedule (fractions).
    """

    double: tuple[int, ...]
    single: tuple[int, ...]
    start_percent: float
    end_percent: float


@dataclass(frozen=True, slots=True)
class SkipLayerGuidance:
    """Adds `scale` times the difference from a prediction that skips some blocks (Ahn et al. 2024,
    "Self-Rectifying Diffusion Sampling with Perturbed-Attention Guidance", with whole blocks).
    `rescaling`: weight of the result rescaled to the conditional prediction's standard deviation.
    """

    blocks: SkippedBlocks
    scale: float
    rescaling: float = 0.0


@dataclass(frozen=True, slots=True)
class SkipLayerNegative:
    """Skips some blocks in the negative prediction."""

    blocks: SkippedBlocks


@dataclass(frozen=True, slots=True)
class GradualMask:
    """Repaints each cell from the step at which its mask reaches the remaining fraction of the
    schedule (Levin and Fried 2023, "Differential Diffusion"). `strength` blends from the plain mask
    (0) to the gradual (1).
    """

    strength: float


@dataclass(frozen=True, slots=True)
class ReferencesApart:
    """Lets references attend to references only, with timestep 0: their keys and values are the
    same at every step.
    """


@dataclass(frozen=True, slots=True)
class OpaquePatch:
    """Wraps a function that a pack attached to a model. Patches are equal if their identities are
    equal, so identities must be unique.

    Signatures: `cfg_function` and `post_cfg_function` in `sampling/guidance.py`, `network_wrapper`
    in the families' folders. `needs_uncond`: compute the negative prediction even at guidance 1.
    """

    kind: Literal["cfg_function", "post_cfg_function", "network_wrapper"]
    identity: str
    function: Callable[..., Any] = field(compare=False, repr=False)
    needs_uncond: bool = False


SamplingPatch = DiscreteSampling | ContinuousSampling | FlowSampling
GuidancePatch = RescaledGuidance | NormedDifference
AfterGuidance = NormedGuidance | ZeroStar | SkipLayerGuidance
Patch = (
    SamplingPatch
    | FreeU
    | GuidancePatch
    | AfterGuidance
    | SkipLayerNegative
    | WholeSequence
    | GradualMask
    | ReferencesApart
    | OpaquePatch
)
P = TypeVar("P", bound=Patch)


def sampling_patch(patches: Iterable[Patch]) -> SamplingPatch | None:
    """Returns the last sampling patch, as ComfyUI does."""
    return _last(patch for patch in patches if isinstance(patch, SamplingPatch))


def gradual_mask(patches: Iterable[Patch]) -> GradualMask | None:
    """Returns the last gradual mask patch."""
    return _last(patch for patch in patches if isinstance(patch, GradualMask))


def references_apart(patches: Iterable[Patch]) -> bool:
    """Returns whether references attend to references only."""
    return any(isinstance(patch, ReferencesApart) for patch in patches)


def guidance_patch(patches: Iterable[Patch]) -> GuidancePatch | OpaquePatch | None:
    """Returns the last patch that replaces plain guidance."""
    return _last(
        patch for patch in patches if isinstance(patch, GuidancePatch) or _is_cfg_function(patch)
    )


def post_guidance_patches(patches: Iterable[Patch]) -> tuple[AfterGuidance | OpaquePatch, ...]:
    """Returns the patches that apply after guidance, in order."""
    return tuple(
        patch
        for patch in patches
        if isinstance(patch, AfterGuidance)
        or (isinstance(patch, OpaquePatch) and patch.kind == "post_cfg_function")
    )


def weakened_guidance(patches: Iterable[Patch]) -> tuple[SkipLayerGuidance, ...]:
    """Returns all skip-layer guidance patches, in order."""
    return tuple(patch for patch in patches if isinstance(patch, SkipLayerGuidance))


def weakened_negative(patches: Iterable[Patch]) -> SkipLayerNegative | None:
    """Returns the last skip-layer negative patch."""
    return _last(patch for patch in patches if isinstance(patch, SkipLayerNegative))


def network_wrapper(patches: Iterable[Patch]) -> OpaquePatch | None:
    """Returns the last patch that wraps the network."""
    return _last(patch for patch in opaque_patches(patches) if patch.kind == "network_wrapper")


def whole_sequence(patches: Iterable[Patch]) -> bool:
    return any(isinstance(patch, WholeSequence) for patch in patches)


def freeu_patches(patches: Iterable[Patch]) -> tuple[FreeU, ...]:
    """Returns all FreeU patches, in order."""
    return tuple(patch for patch in patches if isinstance(patch, FreeU))


def opaque_patches(patches: Iterable[Patch]) -> tuple[OpaquePatch, ...]:
    """Returns the patches that hold functions of this process."""
    return tuple(patch for patch in patches if isinstance(patch, OpaquePatch))


def needs_uncond(patches: Iterable[Patch]) -> bool:
    """Returns whether a patch needs the negative prediction even at guidance 1."""
    return any(
        patch.needs_uncond or patch.kind == "cfg_function" for patch in opaque_patches(patches)
    )


def _is_cfg_function(patch: Patch) -> TypeGuard[OpaquePatch]:
    return isinstance(patch, OpaquePatch) and patch.kind == "cfg_function"


def _last(patches: Iterable[P]) -> P | None:
    found = list(patches)
    return found[-1] if found else None
