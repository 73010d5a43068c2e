"""What a running node may ask of the engine: a protocol, so that nodes and packs never import the executor. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.events import Event
    from katz_graph.folders import Folders
    from katz_graph.planner.region import Region
    from katz_graph.recipe import VaeRecipe
    from katz_graph.wires import LatentSamples


class Engine(Protocol):
    """Runs what needs a model."""

    def sample(self, region: Region, context: Context) -> LatentSamples:
        """Compile and run a step region; the latent that its StepEnd gives."""

    def encode_image(self, vae: VaeRecipe, pixels: Tensor, context: Context) -> Tensor:
        """[B, H, W, 3] in 0..1 -> the posterior's mean [B, C, H/8, W/8], unscaled."""

    def decode_latent(self, vae: VaeRecipe, samples: Tensor, context: Context) -> Tensor:
        """[B, C, H/8, W/8] unscaled -> float32 [B, H, W, 3] in 0..1."""


class Context(Protocol):
    """The services of one run of a graph."""

    @property
    def engine(self) -> Engine: ...

    @property
    def folders(self) -> Folders: ...

    @property
    def output_directory(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Text chunks for pictures that this run writes: `prompt` (the workflow) and what the plan says of itself."""

    def warn(self, message: str) -> None:
        """Tell the person one line without stopping."""

    def report(self, event: Event) -> None:
        """Tell listeners what goes on."""

    def wrote(self, path: Path) -> None:
        """Announce a file that this run has finished writing."""

    def check_cancelled(self) -> None:
        """Raise when the run was cancelled."""
