"""Specifies a sampling run as serialisable data: a run of one of our samplers, or of a diffusers
scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from katz_graph.sampling.names import SamplerChoice


@dataclass(frozen=True, slots=True, eq=False)
class SamplingSpec:
    """Specifies a run of one of our samplers, with ComfyUI's semantics."""

    sampler: str
    # [N + 1], from schedules.schedule and slice_steps; empty: the latent is unchanged
    sigmas: tuple[float, ...]
    seed: int
    add_noise: bool = True
    mask: Tensor | None = None  # [H, W], [B, H, W] or [B, 1, H, W] in any size, 1 = repaint
    batch_index: tuple[int, ...] | None = None  # [B]: number of each sample's draw
    # strength of opening the mask step by step; None: constant mask
    gradual: float | None = None
    # non-default sampler options
    options: tuple[tuple[str, float | str], ...] = ()

    @property
    def choice(self) -> SamplerChoice:
        return SamplerChoice(self.sampler, self.options)


@dataclass(frozen=True, slots=True)
class DiffusersSpec:
    """Specifies a run of a diffusers scheduler, with the semantics of diffusers' pipelines."""

    scheduler_class: str  # of diffusers, for example "EulerDiscreteScheduler"
    steps: int
    seed: int
    scheduler_config: Mapping[str, Any] = field(default_factory=dict)
    # img2img's share of the schedule; at 1 only the latent's shape is used (txt2img)
    strength: float = 1.0
    eta: float = 0.0  # passed to schedulers that take it


Spec = SamplingSpec | DiffusersSpec
