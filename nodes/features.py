"""Changes to what flows between the blocks of a UNet, inside a step region."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from katz_graph.knobs import Strength
from katz_graph.models.family import architecture
from katz_graph.node import Node
from katz_graph.wires import Features, Model

if TYPE_CHECKING:
    from torch import Tensor


class ScaleFeatures(Node, category="denoise"):
    """Weigh backbone against skips before an up block, as FreeU does (Si et al. 2024): half of the hidden channels times `backbone`,
    the low frequencies of the skips that this block reads times `skip`. Stands right before the UNetDecoder of that block.
    """

    up_block: Annotated[int, Field(ge=0, le=63)] = 0
    backbone: Strength = 1.1
    skip: Strength = 0.9

    def run(self, model: Model, features: Features) -> Features:
        positions = skip_positions(architecture(model.unet).down_blocks, architecture(model.unet).layers_per_block, self.up_block)
        half = features.hidden.shape[1] // 2
        hidden = features.hidden.clone()
        hidden[:, :half] *= self.backbone
        skips = tuple(
            scale_low_frequencies(skip, self.skip) if position in positions else skip for position, skip in enumerate(features.skips)
        )
        return replace(features, hidden=hidden, skips=skips)


def skip_positions(down_blocks: int, layers: int, up_block: int) -> range:
    """Which skips an up block reads: `layers` + 1 of them, the last ones first."""
    total = 1 + down_blocks * layers + down_blocks - 1
    end = total - up_block * (layers + 1)
    return range(max(end - layers - 1, 0), max(end, 0))


def scale_low_frequencies(values: Tensor, scale: float) -> Tensor:
    """[B, C, h, w] with the lowest spatial frequencies (one to each side of zero) multiplied by `scale`."""
    import torch

    height, width = values.shape[-2:]
    spectrum = torch.fft.fftshift(torch.fft.fftn(values.float(), dim=(-2, -1)), dim=(-2, -1))
    mask = torch.ones(height, width, device=values.device)
    mask[height // 2 - 1 : height // 2 + 1, width // 2 - 1 : width // 2 + 1] = scale
    filtered: Tensor = torch.fft.ifftn(torch.fft.ifftshift(spectrum * mask, dim=(-2, -1)), dim=(-2, -1)).real
    return filtered.to(values.dtype)
