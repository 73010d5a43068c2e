"""Creates empty latents, masks and batches of latents; reads and writes latent files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import (
    DEFAULT_LATENT_SPACE,
    FRAME_AXES,
    LatentSamples,
    LatentSpace,
)
from katz_graph.models.vae.kinds import FLUX2, QWEN_IMAGE
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.node.knobs import BatchSize
from katz_graph.node.types import Context
from katz_graph.node.ui_results import announced, with_ui
from katz_graph.node.wires import Latent, Mask, Socket

if TYPE_CHECKING:
    from torch import Tensor

LatentSide = Annotated[int, Field(ge=16, le=16384), Widget(step=8)]
TokenSide = Annotated[int, Field(ge=16, le=16384), Widget(step=16)]  # for tokens of 2x2 cells
Latents = Annotated["list[LatentSamples]", Socket("LATENT")]


def _empty(node: Any, space: LatentSpace, context: Context) -> LatentSamples:
    """Returns zeros for a node's width, height and batch size. Floors sizes to whole cells."""
    import torch

    wide, high = space.cells(node.width), space.cells(node.height)
    floored = space.pixels(wide), space.pixels(high)
    if floored != (node.width, node.height):
        context.warn(
            f"{type(node).__name__}: {node.width}x{node.height} is not a multiple of "
            f"{space.factor}; using {floored[0]}x{floored[1]}"
        )
    return {"samples": torch.zeros(node.batch_size, space.channels, high, wide)}


class EmptyLatentImage(Node, category="latent"):
    """Creates an all-zero latent for a start from noise. Sizes are floored to multiples of 8."""

    width: LatentSide = 512
    height: LatentSide = 512
    batch_size: BatchSize = 1

    def run(self, context: Context) -> Latent:
        return _empty(self, DEFAULT_LATENT_SPACE, context)


class EmptySD3LatentImage(Node, category="latent/sd3"):
    """Creates an all-zero latent of 16 channels for transformers. Sizes are floored to multiples of
    8.
    """

    width: TokenSide = 1024
    height: TokenSide = 1024
    batch_size: BatchSize = 1

    def run(self, context: Context) -> Latent:
        space = replace(DEFAULT_LATENT_SPACE, channels=16)
        return _empty(self, space, context)


class EmptyFlux2LatentImage(Node, category="latent"):
    """Creates an all-zero latent of 128 channels in cells of 16 pixels. Sizes are floored to
    multiples of 16.
    """

    width: TokenSide = 1024
    height: TokenSide = 1024
    batch_size: BatchSize = 1

    def run(self, context: Context) -> Latent:
        return _empty(self, FLUX2.latent, context)


class EmptyQwenImageLayeredLatentImage(
    Node, category="latent/qwen", title="Empty Qwen Image Layered Latent"
):
    """Creates an all-zero latent [B, 16, layers + 1, h, w], whose first frame is the whole picture.
    Sizes are floored to multiples of 8.
    """

    width: TokenSide = 640
    height: TokenSide = 640
    layers: Annotated[int, Field(ge=0, le=16384)] = 3
    batch_size: BatchSize = 1

    def run(self, context: Context) -> Latent:
        made = _empty(self, QWEN_IMAGE.latent, context)
        frames = made["samples"].unsqueeze(2)
        return {"samples": frames.repeat(1, 1, self.layers + 1, 1, 1)}


class SetLatentNoiseMask(Node, category="latent/inpaint"):
    """Sets the mask of a latent: samplers repaint only where it is 1."""

    def run(self, samples: Latent, mask: Mask) -> Latent:
        return cast(LatentSamples, {**samples, "noise_mask": mask.reshape(-1, 1, *mask.shape[-2:])})


class LatentBatch(Node, category="latent/batch"):
    """Joins two latents into one batch, the second scaled to the size of the first. Retains masks
    and noise.
    """

    def run(self, samples1: Latent, samples2: Latent) -> Latent:
        from katz_graph.picture.latents import joined, sized_like

        return joined([samples1, sized_like(samples2, samples1["samples"])])


class LatentBatchSeedBehavior(Node, category="latent/advanced"):
    """Selects whether the samples of a batch get different noise from one seed (random) or the same
    noise (fixed).
    """

    seed_behavior: Literal["random", "fixed"] = "fixed"

    def run(self, samples: Latent) -> Latent:
        latent: LatentSamples = {**samples}
        indices = latent.pop("batch_index", None)
        if self.seed_behavior == "fixed":
            latent["batch_index"] = [indices[0] if indices else 0] * len(latent["samples"])
        return latent


class LatentFromBatch(Node, category="latent/batch"):
    """Selects samples of a batch; their noise does not change. A negative index counts from the
    end.
    """

    batch_index: Annotated[int, Field(ge=-16384, le=16384)] = 0
    length: Annotated[int, Field(ge=1, le=64)] = 1

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import select

        return select(samples, self.batch_index, self.length)


class RepeatLatentBatch(Node, category="latent/batch"):
    """Repeats the whole batch."""

    amount: Annotated[int, Field(ge=1, le=64)] = 1

    def run(self, samples: Latent) -> Latent:
        from katz_graph.picture.latents import repeat

        return repeat(samples, self.amount)


class RebatchLatents(Node, category="latent/batch", takes_lists=True, gives_lists=(True,)):
    """Regroups a list of latents into batches of another size. A latent of another width or height
    begins a new batch.
    """

    batch_size: BatchSize = 1

    def run(self, latents: Latents) -> Latents:
        from katz_graph.picture.latents import rebatched

        return list(rebatched(latents, self.batch_size))


class SaveLatent(Node, category="latent", output=True):
    """Writes the samples to a .latent file below the output folder. To load it, move it to the
    input folder.
    """

    filename_prefix: str = "latents/ComfyUI"

    def run(self, samples: Latent, context: Context) -> Latent:
        import torch
        from safetensors.torch import save

        from katz_graph.files.output_files import filled_prefix, write_numbered
        from katz_graph.models.vae.kinds import cell_side

        values: Tensor = samples["samples"].detach().cpu().contiguous()
        if samples.get("noise_mask") is not None:
            context.warn(
                "SaveLatent: the latent's noise mask is not written: these files hold samples only"
            )
        height, width = (side * cell_side(values.shape[1]) for side in values.shape[-2:])
        data = save(
            {"latent_tensor": values, "latent_format_version_0": torch.tensor([])},
            dict(context.metadata),
        )
        name = filled_prefix(self.filename_prefix, width, height, 0)
        path = write_numbered(
            context.output_directory, name, ".latent", lambda file: file.write(data)
        )
        return with_ui(samples, latents=announced(context, "output", [path]))


class LoadLatent(Node, category="latent"):
    """Loads the samples of a .latent file in the input folder."""

    latent: Annotated[str, FileChoice("latents")]

    def fingerprint(self, context: Context) -> Any:
        from katz_graph.models.loading.identity import content_hash

        return content_hash(context.folders.resolve("latents", self.latent))

    def run(self, context: Context) -> Latent:
        from safetensors import safe_open

        from katz_graph.models.loading.contents import contents

        path = context.folders.resolve("latents", self.latent)
        names = contents(path).shapes
        if "latent_tensor" not in names:
            raise InputError(f"{path}: has no latent_tensor, so it is not a file of SaveLatent")
        with safe_open(path, framework="pt") as file:
            samples = file.get_tensor("latent_tensor").float().clone()  # not the mapped file
        if samples.ndim not in (4, FRAME_AXES):
            raise InputError(
                f"{path}: its latent_tensor has shape {list(samples.shape)}, expected [batch, "
                "channels, height, width], or [batch, channels, frames, height, width]"
            )
        return {
            "samples": samples
            if "latent_format_version_0" in names
            else DEFAULT_LATENT_SPACE.restored(samples)
        }
