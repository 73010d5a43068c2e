"""Describes a family's miniature, a small network in the package, and its training and pipelines in
diffusers. Must not know the training data.
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
    """Describes how a family's miniature is built, trained and measured."""

    learns: Learns
    """Predicts noise, or the velocity of a flow."""
    family: ModelFamily
    network: Callable[[int], ModelMixin]
    """Builds the network with random weights for two CLIP text encoders of this width."""
    control: Callable[[ModelMixin], ModelMixin]
    """Builds a ControlNet initialised with the weights of a trained network."""
    scheduler: Callable[[], SchedulerMixin]
    """Builds the diffusers scheduler."""
    pipeline: Callable[..., DiffusionPipeline]
    """Builds the diffusers pipeline from its parts."""
    control_pipeline: Callable[..., DiffusionPipeline]
    """Builds the diffusers pipeline with a ControlNet from its parts."""
    space: LatentSpace | None = None
    """Latent space; None if the VAE's training determines the scale."""
    lora_layers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Maps an original layer that a LoRA changes to the network layers with its rows. "{}" is the
    block number.
    """

    @property
    def part(self) -> str:
        """Returns the name of the network in a diffusers pipeline."""
        return self.family.network.part

    @property
    def lora_prefix(self) -> str:
        """Returns the prefix of layer names in LoRA files of kohya's trainers."""
        return self.family.lora.prefixes[0]


@cache
def miniature(learns: Learns) -> Miniature:
    """Returns the miniature with this training target; exactly one exists."""
    names = [f"katz_graph.models.families.{family}.miniature" for family in FAMILIES]
    all_of_them = [import_module(name).MINIATURE for name in names if find_spec(name) is not None]
    (found,) = (one for one in all_of_them if one.learns == learns)
    return found  # type: ignore[no-any-return]
