"""What a component is, told from its configuration alone: SD1, SD2 or SDXL, widths and factors, and whether two components fit.

Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from katz_graph.errors import InputError
from katz_graph.models.identity import Kind, component, content_hash, not_a_folder, read_json, resolve
from katz_graph.recipe import ClipRecipe, Component, ControlNetRecipe, FileIdentity, ModelRecipe, TextEncoderRecipe, VaeRecipe

Family = Literal["sd1", "sd2", "sdxl"]

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
HUB_FILES = ("model_index.json", "config.json", "diffusion_pytorch_model*.safetensors", "*/*.json", "*/*.txt", "*/*.safetensors")
HUB_LEFT_OUT = ("*.non_ema.*", "safety_checker/*", "feature_extractor/*")
BLOCKS = {"CrossAttnDownBlock2D", "DownBlock2D", "UNetMidBlock2DCrossAttn", "UpBlock2D", "CrossAttnUpBlock2D"}
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
    """The shape of a UNet or ControlNet."""

    family: Family
    latent_channels: int
    text_width: int  # of the text encoding's hidden state
    pooled_width: int | None  # of the pooled text, SDXL
    channels: tuple[int, ...]  # per down block
    layers_per_block: int
    down_blocks: int
    up_blocks: int  # 0 in a ControlNet


@dataclass(frozen=True, slots=True)
class VaeShape:
    latent_channels: int
    factor: int  # pixels per latent, along one side
    scaling_factor: float  # a latent times this is what a sampler works on
    force_upcast: bool  # known to overflow in float16


def pipeline_recipes(source: str | Path) -> tuple[ModelRecipe, ClipRecipe, VaeRecipe]:
    """The recipes of a pipeline: a folder in diffusers' layout, or a hub id (`owner/name`), which is fetched.

    InputError when it is not a Stable Diffusion 1, 2 or XL pipeline, or its parts do not fit each other.
    """
    folder = _folder(source)
    if not folder.is_dir():
        raise not_a_folder(folder, "pipeline", "StableDiffusionPipeline")
    index = folder / "model_index.json"
    if not index.exists():
        raise InputError(f"{folder}: model_index.json is missing: expected a pipeline folder in diffusers' layout")
    parts = read_json(index)

    def part(name: str, kind: Kind) -> Component:
        if not _present(parts, name) or not (folder / name).is_dir():
            raise InputError(f"{folder}: the pipeline has no {name}: expected a Stable Diffusion 1, 2 or XL pipeline in diffusers' layout")
        return component(folder / name, kind)

    suffixes = ("", "_2") if _present(parts, "text_encoder_2") else ("",)
    encoders = tuple(TextEncoderRecipe(part(f"text_encoder{s}", "text_encoder"), part(f"tokenizer{s}", "tokenizer")) for s in suffixes)
    clip, vae = ClipRecipe(encoders), VaeRecipe(part("vae", "vae"))
    model = ModelRecipe(part("unet", "unet"), part("scheduler", "scheduler"), vae_shape(vae).scaling_factor)
    expect_class(model.unet, "UNet2DConditionModel")
    _check_pipeline(architecture(model.unet), model, clip, vae)
    prediction_type(model)
    return model, clip, vae


def controlnet_recipe(source: str | Path) -> ControlNetRecipe:
    """The recipe of a ControlNet: a folder in diffusers' layout, or a hub id."""
    recipe = ControlNetRecipe(component(_folder(source), "controlnet"))
    expect_class(recipe.control_net, "ControlNetModel")
    architecture(recipe.control_net)
    return recipe


def vae_recipe(source: str | Path) -> VaeRecipe:
    """The recipe of a VAE: a folder in diffusers' layout, or a hub id."""
    recipe = VaeRecipe(component(_folder(source), "vae"))
    vae_shape(recipe)
    return recipe


def config(part: Component) -> Mapping[str, Any]:
    """A component's configuration, as it was when the recipe was made. InputError when the file has changed since."""
    return _config(next(file for file in part.files if Path(file.path).name in ("config.json", "scheduler_config.json")))


def scheduler_config(model: ModelRecipe) -> dict[str, Any]:
    """The configuration that the model's scheduler was saved with: its noise table and kind of prediction."""
    return dict(config(model.scheduler))


def prediction_type(model: ModelRecipe) -> Literal["epsilon", "v_prediction"]:
    kind = config(model.scheduler).get("prediction_type", "epsilon")
    if kind not in ("epsilon", "v_prediction"):
        raise InputError(f"{model.scheduler.folder}: prediction_type is {kind!r}, expected 'epsilon' or 'v_prediction'")
    return kind  # type: ignore[no-any-return]


@lru_cache(maxsize=256)
def architecture(part: Component) -> Architecture:
    """The shape of a UNet or ControlNet. InputError when it is of a kind that cannot be run in stages."""
    expect_class(part, "UNet2DConditionModel", "ControlNetModel")
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
    pooled = (
        _field(part, "projection_class_embeddings_input_dim", int) - 6 * _field(part, "addition_time_embed_dim", int) if added else None
    )
    return Architecture(
        family=family,
        latent_channels=_field(part, "in_channels", int, 4),
        text_width=width,
        pooled_width=pooled,
        channels=tuple(_field(part, "block_out_channels", list)),
        layers_per_block=_field(part, "layers_per_block", int, 2),
        down_blocks=len(down),
        up_blocks=len(up),
    )


@lru_cache(maxsize=256)
def vae_shape(vae: VaeRecipe) -> VaeShape:
    """The shape of a VAE. InputError when it is of a kind whose latents mean something else."""
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
    """InputError, naming both numbers, when a ControlNet's residuals or text do not fit the UNet."""
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
    """InputError, naming both numbers, when the text encoders give what another UNet takes."""
    unet = architecture(model.unet)
    width = sum(_field(encoder.encoder, "hidden_size", int) for encoder in clip.encoders)
    pooled = config(clip.encoders[-1].encoder).get("projection_dim") if len(clip.encoders) > 1 else None
    if width != unet.text_width or pooled != unet.pooled_width:
        raise InputError(
            f"{clip.encoders[0].encoder.folder}: the text encoders do not fit the UNet: they give text of width {width} (pooled {pooled}), "
            f"the UNet in {model.unet.folder} takes {unet.text_width} (pooled {unet.pooled_width}); take CLIP and MODEL from one checkpoint"
        )


def expect_class(part: Component, *names: str) -> None:
    """InputError when the configuration names a class that is none of `names`."""
    got = config(part).get("_class_name")
    if got not in names:
        raise InputError(f"{part.folder}: config.json describes {got or 'no class'}, expected {' or '.join(names)}")


def _check_pipeline(unet: Architecture, model: ModelRecipe, clip: ClipRecipe, vae: VaeRecipe) -> None:
    texts = [config(encoder.encoder) for encoder in clip.encoders]
    width = sum(_field(encoder.encoder, "hidden_size", int) for encoder in clip.encoders)
    if width != unet.text_width:
        raise InputError(f"{model.unet.folder}: the UNet takes text of width {unet.text_width}, the pipeline's text encoders give {width}")
    if unet.family == "sdxl" and (len(texts) != 2 or texts[1].get("projection_dim") != unet.pooled_width):
        raise InputError(
            f"{model.unet.folder}: an SDXL UNet needs two text encoders, the second projecting to {unet.pooled_width}; "
            f"this pipeline has {len(texts)}, projecting to {texts[-1].get('projection_dim')}"
        )
    latents = vae_shape(vae).latent_channels
    if latents != unet.latent_channels:
        raise InputError(f"{model.unet.folder}: the UNet takes {unet.latent_channels} latent channels, the VAE has {latents}")


def _field(part: Component, name: str, kind: type, default: Any = None) -> Any:
    value = config(part).get(name, default)
    if not isinstance(value, (int, float) if kind is float else kind):
        raise InputError(f"{part.folder}: config.json gives {value!r} as {name}, expected {'a list' if kind is list else 'a number'}")
    return value


def _present(parts: Mapping[str, Any], name: str) -> bool:
    entry = parts.get(name)
    return isinstance(entry, list) and bool(entry) and entry[-1] is not None


@lru_cache(maxsize=1024)
def _config(file: FileIdentity) -> Mapping[str, Any]:
    path = resolve(file.path)
    if content_hash(path) != file.header:
        raise InputError(f"{path}: changed since the workflow began to use it: run the workflow again")
    return read_json(path)


def _folder(source: str | Path) -> Path:
    """The local folder of `source`, fetched from the hub when there is none and the name can be a hub id."""
    if Path(source).expanduser().exists() or not HUB_ID.fullmatch(str(source)):
        return resolve(source)
    from huggingface_hub import HfApi, snapshot_download

    name = str(source)
    try:
        present = {file.rfilename for file in HfApi().model_info(name, timeout=10).siblings or ()}
        doubled = [file for file in present if ".fp16." in file and file.replace(".fp16.", ".") in present]
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), ignore_patterns=[*HUB_LEFT_OUT, *doubled]))
    except Exception as problem:  # the hub's client lets errors of several network libraries through
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0]
    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES), local_files_only=True))
    except Exception:
        raise InputError(f"{name}: no such local folder, and it could not be fetched from the Hugging Face hub: {reason}") from None
