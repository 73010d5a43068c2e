"""Derives the architecture of a UNet or ControlNet (Stable Diffusion 1, 2 or XL; widths, blocks)
from its configuration. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value, expect_class
from katz_graph.models.family import Architecture

Version = Literal["sd1", "sd2", "sdxl"]

UNET = "UNet2DConditionModel"
CONTROLNETS = ("ControlNetModel", "ControlNetUnionModel")
BLOCKS = {
    "CrossAttnDownBlock2D",
    "DownBlock2D",
    "UNetMidBlock2DCrossAttn",
    "UNetMidBlock2D",
    "UpBlock2D",
    "CrossAttnUpBlock2D",
}
MID_BLOCK = "UNetMidBlock2DCrossAttn"
UNUSED = (
    "class_embed_type",
    "num_class_embeds",
    "encoder_hid_dim_type",
    "time_cond_proj_dim",
    "time_embedding_act_fn",
    "center_input_sample",
)
SCALES: Mapping[Version, float] = {
    "sd1": 0.18215,
    "sd2": 0.18215,
    "sdxl": 0.13025,
}  # scaling factors of latents


@dataclass(frozen=True, slots=True)
class UNetArchitecture(Architecture):
    version: Version
    channels: tuple[int, ...]  # per down block
    layers_per_block: int
    down_blocks: int
    up_blocks: int  # 0 in a ControlNet

    def skip_range(self, up_block: int) -> range:
        """Returns the positions of the skips that an up block reads; empty if there is no such
        block. `blocks.skip_range` does this for a live module.
        """
        end = (self.down_blocks - up_block) * (self.layers_per_block + 1)
        return range(max(end - self.layers_per_block - 1, 0), max(end, 0))

    def __str__(self) -> str:
        return f"{self.version.upper()} {self.channels}"

    @property
    def is_refiner(self) -> bool:
        """Returns whether this has the shape of SDXL's refiner: one text encoder, and pooled text
        as wide as text.
        """
        return self.pooled_width == self.text_width


@lru_cache(maxsize=256)
def unet_architecture(part: Component) -> UNetArchitecture:
    """Returns the architecture of a UNet or ControlNet. Raises InputError if it cannot run in
    stages.
    """
    expect_class(part, UNET, *CONTROLNETS)
    values = config(part)
    down, up = config_value(part, "down_block_types", list), values.get("up_block_types") or ()
    strange = next(
        (
            block
            for block in (*down, *up, values.get("mid_block_type", MID_BLOCK))
            if block not in BLOCKS
        ),
        None,
    )
    if strange:
        raise InputError(
            f"{part.folder}: block type {strange} is not supported, "
            f"expected those of Stable Diffusion 1, 2 and XL: {', '.join(sorted(BLOCKS))}"
        )
    used = next((name for name in UNUSED if values.get(name) not in (None, False)), None)
    if used:
        raise InputError(
            f"{part.folder}: {used} is {values[used]!r}: models with that condition are not "
            "supported, expected Stable Diffusion 1, 2 or XL"
        )
    added = values.get("addition_embed_type")
    if added not in (None, "text_time"):
        raise InputError(
            f"{part.folder}: addition_embed_type is {added!r}, expected none (SD1, SD2) or "
            "'text_time' (SDXL)"
        )
    width = config_value(part, "cross_attention_dim", int)
    return UNetArchitecture(
        latent_channels=config_value(part, "out_channels" if up else "in_channels", int, 4),
        input_channels=config_value(part, "in_channels", int, 4),
        text_width=width,
        pooled_width=pooled_width(values) if added else None,
        version="sdxl"
        if added
        else "sd2"
        if width == 1024 or values.get("use_linear_projection")
        else "sd1",
        channels=tuple(config_value(part, "block_out_channels", list)),
        layers_per_block=config_value(part, "layers_per_block", int, 2),
        down_blocks=len(down),
        up_blocks=len(up),
    )


def pooled_width(config: Mapping[str, Any]) -> int:
    """Returns P of an SDXL model's pooled text [B, P]. The remaining input embeds six numbers, or
    five for the refiner.
    """
    width = config["projection_class_embeddings_input_dim"]
    number = config["addition_time_embed_dim"]
    refiner = width - 5 * number == config["cross_attention_dim"]
    return int(width - (5 if refiner else 6) * number)


def trained_latent(unet: Component) -> LatentSpace:
    """Returns the latent space of the VAE of a UNet's version."""
    shape = unet_architecture(unet)
    return LatentSpace(shape.latent_channels, factor=8, scale=SCALES[shape.version])


def vae_overflows(unet: Component) -> bool:
    """Returns whether the VAE of a UNet's version overflows in half precision."""
    return unet_architecture(unet).version == "sdxl"


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError, with both numbers, if a ControlNet's residuals or text do not fit the
    UNet.
    """
    ours, theirs = unet_architecture(control.control_net), unet_architecture(model.network)
    for name, got, wanted in (
        ("text width", ours.text_width, theirs.text_width),
        ("pooled text width", ours.pooled_width, theirs.pooled_width),
        ("block widths", ours.channels, theirs.channels),
        ("layers per block", ours.layers_per_block, theirs.layers_per_block),
        ("latent channels", ours.latent_channels, theirs.latent_channels),
    ):
        if got != wanted:
            raise InputError(
                f"{control.control_net.folder}: the ControlNet does not fit the UNet: its "
                f"{name} is {got}, "
                f"the UNet in {model.network.folder} has {wanted}: choose a ControlNet made for "
                f"{theirs.version.upper()}"
            )
