"""Describes the miniature of a family: a small network that the package trains and carries, and how
diffusers runs it. Knows nothing of what it is trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Literal

from diffusers import DiffusionPipeline, ModelMixin, SchedulerMixin

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families import FAMILIES
from katz_graph.models.family import ModelFamily

Learns = Literal["noise", "flow"]


@dataclass(frozen=True, slots=True)
class Miniature:
    """Describes what a training and its measurement take from a family.

    `learns`: to predict noise, or a flow's velocity. `network` makes one of random weights beside
    two of CLIP's text encoders of this width; `control` makes a ControlNet that begins with a
    trained network's weights. `scheduler`, `pipeline`, `control_pipeline`: make what runs it in
    diffusers, pipelines from their parts. `space`: of its latents; None where their scale is what
    its VAE's training gives. `lora_layers`: the original layers that a LoRA changes, with those of
    the network that their rows are; "{}" stands for a block's number.
    """

    learns: Learns
    family: ModelFamily
    network: Callable[[int], ModelMixin]
    control: Callable[[ModelMixin], ModelMixin]
    scheduler: Callable[[], SchedulerMixin]
    pipeline: Callable[..., DiffusionPipeline]
    control_pipeline: Callable[..., DiffusionPipeline]
    space: LatentSpace | None = None
    lora_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """What a pipeline calls the network."""
        return self.family.network.part

    @property
    def lora_prefix(self) -> str:
        """How kohya's trainers begin the names of the network's layers."""
        return self.family.lora.prefixes[0]


@cache
def miniature(learns: Learns) -> Miniature:
    """Finds the one miniature that learns this."""
    names = [f"katz_graph.models.families.{family}.miniature" for family in FAMILIES]
    all_of_them = [import_module(name).MINIATURE for name in names if find_spec(name) is not None]
    (found,) = (one for one in all_of_them if one.learns == learns)
    return found  # type: ignore[no-any-return]
