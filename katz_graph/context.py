"""Declares the services that a running node may ask of the engine: a protocol, so that nodes and
packs never import the executor. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from katz_graph.events import Event
    from katz_graph.files.folders import Folders
    from katz_graph.ir.changes import PlanChanges
    from katz_graph.ir.device import Device
    from katz_graph.ir.region import Region
    from katz_graph.ir.values import TextEncoding
    from katz_graph.node.types import NodeType
    from katz_graph.recipe import Encoding, Tile, UpscaleModelRecipe, VaeRecipe
    from katz_graph.wires import LatentSamples


class Engine(Protocol):
    """Runs what needs a model."""

    @property
    def device(self) -> Device:
        """Returns the device that it computes on."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that runs may use, unless they choose others."""

    def sample(self, region: Region, context: Context) -> tuple[LatentSamples, LatentSamples]:
        """Compiles and runs a step region. Returns the outputs of its StepEnd: the latent, and the
        denoised one that the last step began with.
        """

    def encode_text(self, encoding: Encoding, context: Context) -> TextEncoding:
        """Returns [1, T, D], and pooled [1, P] where the family has it; float32 on the CPU."""

    def encode_image(
        self, vae: VaeRecipe, pixels: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Encodes [B, H, W, 3] in 0..1 to the posterior's mean [B, C, H/8, W/8], unscaled; in tiles
        if asked, or where memory is short.
        """

    def decode_latent(
        self, vae: VaeRecipe, samples: Tensor, context: Context, tile: Tile | None = None
    ) -> Tensor:
        """Decodes [B, C, H/8, W/8] unscaled to float32 [B, H, W, 3] in 0..1; in tiles if asked, or
        where memory is short.
        """

    def upscale(self, model: UpscaleModelRecipe, picture: Tensor, context: Context) -> Tensor:
        """Enlarges [B, 3, H, W] in 0..1 to float32 [B, 3, H·scale, W·scale], at once."""


class Context(Protocol):
    """Offers a node the services of one run of a graph."""

    @property
    def engine(self) -> Engine: ...

    @property
    def folders(self) -> Folders: ...

    @property
    def types(self) -> Mapping[str, NodeType]:
        """Returns the node types of this run, by name."""

    @property
    def output_directory(self) -> Path: ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Returns the text chunks for pictures that this run writes: `prompt` (the workflow) and
        what the plan says of itself.
        """

    @property
    def changes(self) -> PlanChanges:
        """Returns what this run's samplers are planned for in place of what runs have."""

    @property
    def allowed(self) -> frozenset[str]:
        """Returns the approximations that this run may use."""

    @property
    def previews(self) -> bool:
        """Tells whether this run shows previews."""

    def wants_preview(self, node: str) -> bool:
        """Tells whether to make a preview of a node now: not soon after the last time that it said
        so.
        """

    def warn(self, message: str) -> None:
        """Tells the person one line without stopping."""

    def report(self, event: Event) -> None:
        """Reports an event to the listeners."""

    def wrote(self, path: Path) -> None:
        """Announces a file that this run has finished writing."""

    def deliver(self, picture: bytes) -> None:
        """Sends a PNG file to the client that asked for this run. InputError when no client did."""

    def check_cancelled(self) -> None:
        """Raises when the run was cancelled."""

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        """Calls `act`, in any thread, when the run is cancelled, or now if it was.

        Returns the function that ends this; `act` may still be called late, after that.
        """
