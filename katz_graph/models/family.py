"""Describes a component from its configuration alone: SD1, SD2 or SDXL, widths and factors; and
checks that two components fit.

Never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from katz_graph.errors import InputError
from katz_graph.models.loading.identity import content_hash, read_json, resolve
from katz_graph.recipe import ClipRecipe, Component, ControlNetRecipe, FileIdentity, ModelRecipe, VaeRecipe

Family = Literal["sd1", "sd2", "sdxl"]

BLOCKS = {"CrossAttnDownBlock2D", "DownBlock2D", "UNetMidBlock2DCrossAttn", "UNetMidBlock2D", "UpBlock2D", "CrossAttnUpBlock2D"}
MID_BLOCK = "UNetMidBlock2DCrossAttn"
UNUSED = (
    "class_embed_type",
    "num_class_embeds",
    "encoder_hid_dim_type",
    "time_cond_proj_dim",
    "time_embedding_act_fn",
    "center_input_sample",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """Describes the shape of a UNet or ControlNet."""

    family: Family
    latent_channels: int  # of the prediction
    input_channels: int  # more than latent_channels where a mask or a picture is concatenated
    text_width: int  # of the text encoding's hidden state
    pooled_width: int | None  # of the pooled text, SDXL
    channels: tuple[int, ...]  # per down block
    layers_per_block: int
    down_blocks: int
    up_blocks: int  # 0 in a ControlNet

    def skip_range(self, up_block: int) -> range:
        """Returns the positions of the skips that an up block reads, as `unet.skip_range` does for
        a live module; none without such a block.
        """
        end = (self.down_blocks - up_block) * (self.layers_per_block + 1)
        return range(max(end - self.layers_per_block - 1, 0), max(end, 0))


@dataclass(frozen=True, slots=True)
class VaeShape:
    latent_channels: int
    factor: int  # pixels per latent, along one side
    scaling_factor: float  # a latent times this is what a sampler works on
    force_upcast: bool  # known to overflow in float16


def config(part: Component) -> Mapping[str, Any]:
    """Returns a component's configuration, as it was when the recipe was made. InputError when the
    file has changed since.
    """
    if part.configuration is not None:
        return _parsed(part.configuration)
    return _config(next(file for file in part.files if Path(file.path).name in ("config.json", "scheduler_config.json")))


def scheduler_config(model: ModelRecipe) -> dict[str, Any]:
    """Returns the configuration that the model's scheduler was saved with: its noise table and kind
    of prediction.
    """
    return dict(config(model.scheduler))


def prediction_type(model: ModelRecipe) -> Literal["epsilon", "v_prediction"]:
    kind = config(model.scheduler).get("prediction_type", "epsilon")
    if kind not in ("epsilon", "v_prediction"):
        raise InputError(f"{model.scheduler.folder}: prediction_type is {kind!r}, expected 'epsilon' or 'v_prediction'")
    return kind  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def architecture(part: Component) -> Architecture:
    """Returns the shape of a UNet or ControlNet. InputError when it is of a kind that cannot be run
    in stages.
    """
    expect_class(part, "UNet2DConditionModel", "ControlNetModel", "ControlNetUnionModel")
    values = config(part)
    down, up = _field(part, "down_block_types", list), values.get("up_block_types") or ()
    strange = next((block for block in (*down, *up, values.get("mid_block_type", MID_BLOCK)) if block not in BLOCKS), None)
    if strange:
        raise InputError(
            f"{part.folder}: block type {strange} is not supported, "
            f"expected those of Stable Diffusion 1, 2 and XL: {', '.join(sorted(BLOCKS))}"
        )
    used = next((name for name in UNUSED if values.get(name) not in (None, False)), None)
    if used:
        raise InputError(
            f"{part.folder}: {used} is {values[used]!r}: models with that condition are not supported, expected Stable Diffusion 1, 2 or XL"
        )
    added = values.get("addition_embed_type")
    if added not in (None, "text_time"):
        raise InputError(f"{part.folder}: addition_embed_type is {added!r}, expected none (SD1, SD2) or 'text_time' (SDXL)")
    width = _field(part, "cross_attention_dim", int)
    family: Family = "sdxl" if added else "sd2" if width == 1024 or values.get("use_linear_projection") else "sd1"
    return Architecture(
        family=family,
        latent_channels=_field(part, "out_channels", int, 4) if up else _field(part, "in_channels", int, 4),
        input_channels=_field(part, "in_channels", int, 4),
        text_width=width,
        pooled_width=pooled_width(values) if added else None,
        channels=tuple(_field(part, "block_out_channels", list)),
        layers_per_block=_field(part, "layers_per_block", int, 2),
        down_blocks=len(down),
        up_blocks=len(up),
    )


def is_refiner(unet: Component) -> bool:
    """Returns true if a UNet is shaped as SDXL's refiner, whose text comes from one encoder and is
    as wide as its pooled text.
    """
    shape = architecture(unet)
    return shape.pooled_width == shape.text_width


def extra_channels(unet: Component) -> int:
    """Counts the input channels beside the latent's: 5 for inpainting (mask and masked picture), 4
    for editing by instruction, else 0.
    """
    shape = architecture(unet)
    return shape.input_channels - shape.latent_channels


def pooled_width(config: Mapping[str, Any]) -> int:
    """Returns P of the pooled text [B, P] that an SDXL model takes beside six numbers, or five: the
    refiner, whose text is as wide.
    """
    width, number = config["projection_class_embeddings_input_dim"], config["addition_time_embed_dim"]
    refiner = width - 5 * number == config["cross_attention_dim"]
    return int(width - (5 if refiner else 6) * number)


@lru_cache(maxsize=256)
def vae_shape(vae: VaeRecipe) -> VaeShape:
    """Returns a VAE's shape. InputError for a kind whose latents mean something else."""
    expect_class(vae.vae, "AutoencoderKL")
    values = config(vae.vae)
    if values.get("shift_factor") or values.get("latents_mean"):
        raise InputError(f"{vae.vae.folder}: this VAE shifts its latents, expected one of Stable Diffusion 1, 2 or XL")
    return VaeShape(
        latent_channels=_field(vae.vae, "latent_channels", int, 4),
        factor=2 ** (len(_field(vae.vae, "block_out_channels", list)) - 1),
        scaling_factor=_field(vae.vae, "scaling_factor", float, 0.18215),
        force_upcast=bool(values.get("force_upcast", False)),
    )


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming both numbers, when a ControlNet's residuals or text do not fit the
    UNet.
    """
    ours, theirs = architecture(control.control_net), architecture(model.unet)
    for name, got, wanted in (
        ("text width", ours.text_width, theirs.text_width),
        ("pooled text width", ours.pooled_width, theirs.pooled_width),
        ("block widths", ours.channels, theirs.channels),
        ("layers per block", ours.layers_per_block, theirs.layers_per_block),
        ("latent channels", ours.latent_channels, theirs.latent_channels),
    ):
        if got != wanted:
            raise InputError(
                f"{control.control_net.folder}: the ControlNet does not fit the UNet: its {name} is {got}, "
                f"the UNet in {model.unet.folder} has {wanted}: choose a ControlNet made for {theirs.family.upper()}"
            )


def check_text(clip: ClipRecipe, model: ModelRecipe) -> None:
    """Raises InputError, naming both numbers, when the text encoders are for another UNet."""
    unet = architecture(model.unet)
    width, pooled = text_width(clip), pooled_text_width(clip)
    if width != unet.text_width or pooled != unet.pooled_width:
        raise InputError(
            f"{clip.encoders[0].encoder.folder}: the text encoders do not fit the UNet: they give text of width {width} (pooled {pooled}), "
            f"the UNet in {model.unet.folder} takes {unet.text_width} (pooled {unet.pooled_width}); take CLIP and MODEL from one checkpoint"
        )


def text_width(clip: ClipRecipe) -> int:
    """Returns D of the text encoding [B, T, D]: that of all encoders side by side."""
    return int(sum(_field(encoder.encoder, "hidden_size", int) for encoder in clip.encoders))


def pooled_text_width(clip: ClipRecipe) -> int | None:
    """Returns P of the pooled text [B, P] that SDXL's second text encoder, or its refiner's only
    one, gives; None for all others.
    """
    values = config(clip.encoders[-1].encoder)
    return values.get("projection_dim") if "CLIPTextModelWithProjection" in (values.get("architectures") or ()) else None


def union_types(control: ControlNetRecipe) -> int:
    """Counts the kinds of reference that a ControlNet for several knows; 0 for one of one kind."""
    values = config(control.control_net)
    return int(values["num_control_type"]) if values.get("_class_name") == "ControlNetUnionModel" else 0


def expect_class(part: Component, *names: str) -> None:
    """Raises InputError when the configuration names a class that is none of `names`."""
    got = config(part).get("_class_name")
    if got not in names:
        raise InputError(f"{part.folder}: config.json describes {got or 'no class'}, expected {' or '.join(names)}")


def check_pipeline(model: ModelRecipe, clip: ClipRecipe, vae: VaeRecipe) -> None:
    """Raises InputError when the parts of one pipeline do not fit each other."""
    unet = architecture(model.unet)
    width = sum(_field(encoder.encoder, "hidden_size", int) for encoder in clip.encoders)
    if width != unet.text_width:
        raise InputError(f"{model.unet.folder}: the UNet takes text of width {unet.text_width}, the pipeline's text encoders give {width}")
    if pooled_text_width(clip) != unet.pooled_width:
        raise InputError(
            f"{model.unet.folder}: the UNet takes pooled text of width {unet.pooled_width}, the pipeline's {len(clip.encoders)} text "
            f"encoders give {pooled_text_width(clip)}"
        )
    latents = vae_shape(vae).latent_channels
    if latents != unet.latent_channels:
        raise InputError(f"{model.unet.folder}: the UNet takes {unet.latent_channels} latent channels, the VAE has {latents}")


def _field(part: Component, name: str, kind: type, default: Any = None) -> Any:
    value = config(part).get(name, default)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise InputError(f"{part.folder}: config.json gives {value!r} as {name}, expected {'a list' if kind is list else 'a number'}")
    return value


@lru_cache(maxsize=1024)
def _parsed(configuration: str) -> Mapping[str, Any]:
    values: Mapping[str, Any] = json.loads(configuration)
    return values


@lru_cache(maxsize=1024)
def _config(file: FileIdentity) -> Mapping[str, Any]:
    path = resolve(file.path)
    if content_hash(path) != file.header:
        raise InputError(f"{path}: changed since the workflow began to use it: run the workflow again")
    return read_json(path)
