"""Identifies the contents of one safetensors file, in either layout: whole checkpoints, UNets, text
encoders, VAEs and ControlNets.

Reads the header alone; refuses anything else by its name. Never imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from katz_graph.errors import InputError
from katz_graph.models.loading.configurations import (
    Shapes,
    controlnet_configuration,
    text_configuration,
    unet_configuration,
    vae_configuration,
)
from katz_graph.models.loading.identity import configuration_identity, file_identity, read_header
from katz_graph.recipe import Component, FileIdentity, TextEncoderRecipe

UNETS = ("model.diffusion_model.", "")
VAES = ("first_stage_model.", "vae.", "")
CONTROLNETS = ("control_model.", "")
AVERAGING = ("_shuffle", "_shuffle_fp16")  # how the names of ControlNets end whose residuals are averaged over the picture
TEXT_ENCODERS = {  # by prefix: whether it is SDXL's second
    "conditioner.embedders.0.transformer.": False,
    "conditioner.embedders.1.model.": True,
    "conditioner.embedders.0.model.": True,  # the refiner's only one
    "cond_stage_model.transformer.": False,
    "cond_stage_model.model.": False,
}
TOKENIZER = Path(__file__).parents[1] / "clip_tokenizer"
PADDING = {"quick_gelu": "<|endoftext|>", "gelu": "!"}  # CLIP's own text encoder, OpenCLIP's
SDXL_SCALING, SCALING = 0.13025, 0.18215
RUNS = "Katz Graph runs SD1.5, SD2 and SDXL"
FAMILIES = {
    r"(^|\.)joint_blocks\.": "Stable Diffusion 3",
    r"txt_in\.individual_token_refiner": "HunyuanVideo",
    r"distilled_guidance_layer\.": "Chroma",
    r"(^|\.)(double_blocks|single_transformer_blocks)\.": "Flux",
    r"(^|\.)double_layers\.": "AuraFlow",
    r"(^|\.)cap_embedder\.": "Lumina 2",
    r"\.time_stack\.": "Stable Video Diffusion",
    r"(^|\.)clip_txt_mapper\.|\.channelwise\.": "Stable Cascade",
    r"(^|\.)mlp_t5\.": "HunyuanDiT",
    r"(^|\.)head\.modulation$": "Wan",
    r"(^|\.)patchify_proj\.": "LTX-Video",
    r"(^|\.)txt_norm\.": "Qwen-Image",
    r"(^|\.)adaln_single\.": "PixArt",
    r"^net\.x_embedder\.": "Cosmos",
    r"^edm_mean$": "Playground 2.5",
    r"^edm_vpred\.": "EDM",
}
SCALED = re.compile(r"(^|\.)(scaled_fp8|scale_weight|weight_scale)$", re.MULTILINE)
KINDS = {
    r"lora_controlnet": ("Control-LoRA", "which is not supported: take the whole ControlNet"),
    r"lora_|\.lora\.|hada_|lokr_|\.dora_scale": ("LoRA", "load it with LoraLoader"),
    r"motion_modules\.": ("AnimateDiff motion module", "which is not supported"),
    r"^(adapter\.)?body\.\d+\.(block1|resnets|in_conv)": ("T2I-adapter", "which is not supported: take a ControlNet"),
    r"ip_adapter": ("IP-Adapter", "which is not supported"),
    r"input_hint_block\.|controlnet_cond_embedding\.": ("ControlNet", "load it with ControlNetLoader"),
    r"^(emb_params|clip_[lg]|string_to_param.*)$": (
        "textual inversion",
        "put it into models/embeddings, and write embedding:NAME in a prompt",
    ),
    r"vision_model\.": ("CLIP vision encoder", "which is not supported"),
    r"SelfAttention\.": ("T5 text encoder", f"which is for other models: {RUNS}"),
    r"(^|\.)(input_blocks\.0\.0|up_blocks\.0\.resnets\.0\.conv1)\.weight$": ("UNet", "load it with UNETLoader"),
    r"(encoder\.layers|transformer\.resblocks)\.0\.": ("text encoder", "load it with CLIPLoader"),
    r"decoder\.conv_in\.weight$": ("VAE", "load it with VAELoader"),
    r"^(conv_first|model\.0|body\.0)\.": ("upscale model", "load it with UpscaleModelLoader"),
}


@dataclass(frozen=True, slots=True)
class Contents:
    """Holds the header of a safetensors file."""

    identity: FileIdentity
    shapes: Shapes
    types: Mapping[str, str]  # the number format of each tensor
    metadata: Mapping[str, str]

    @property
    def path(self) -> str:
        return self.identity.path

    def under(self, prefix: str) -> Shapes:
        """Returns the tensors whose names begin with a prefix, without it."""
        return {name.removeprefix(prefix): shape for name, shape in self.shapes.items() if name.startswith(prefix)}


def contents(path: str | Path) -> Contents:
    """Reads a file's header. InputError when it is a pickle, truncated, or no safetensors file."""
    return contents_of(file_identity(path))


@lru_cache(maxsize=64)
def contents_of(identity: FileIdentity) -> Contents:
    """Reads the header of a file that was named before."""
    _, entries = read_header(Path(identity.path))
    metadata = entries.pop("__metadata__", {})
    shapes = {name: tuple(entry["shape"]) for name, entry in entries.items()}
    return Contents(identity, shapes, {name: entry["dtype"] for name, entry in entries.items()}, metadata)


def unet_component(file: Contents, rounding: str | None = None) -> Component:
    """Returns a checkpoint's UNet, or that of its own file. InputError names what the file is."""
    names = ("input_blocks.0.0.weight", "up_blocks.0.resnets.0.conv1.weight")
    prefix = _prefix(file, UNETS, names, "a UNet", besides=("input_hint_block.0.weight",))
    return _component(file, prefix, unet_configuration, rounding)


def vae_component(file: Contents, sdxl: bool = False) -> Component:
    """Returns a checkpoint's VAE, or that of its own file, which does not say if it is SDXL's."""
    prefix = _prefix(file, VAES, ("decoder.conv_in.weight",), "a VAE")
    return _component(file, prefix, lambda shapes: vae_configuration(shapes, SDXL_SCALING if sdxl else SCALING, sdxl))


def controlnet_component(file: Contents) -> Component:
    """Returns a ControlNet, in either layout, also one for several kinds of reference. The file's
    name tells if it averages its residuals.
    """
    names = ("input_hint_block.0.weight", "controlnet_cond_embedding.conv_in.weight")
    control_lora = any("lora_controlnet" in name for name in file.shapes)
    prefix = _prefix(file, () if control_lora else CONTROLNETS, names, "a ControlNet")
    averages = Path(file.path).stem.endswith(AVERAGING)
    return _component(file, prefix, lambda shapes: controlnet_configuration(shapes, averages))


def text_encoders(file: Contents) -> tuple[TextEncoderRecipe, ...]:
    """Returns the text encoders of a checkpoint, in order, or the one of a file of its own."""
    inside = [(prefix, projecting) for prefix, projecting in TEXT_ENCODERS.items() if file.under(prefix)]
    if inside:
        return tuple(_text_encoder(file, prefix, projecting) for prefix, projecting in inside)
    names = ("text_model.encoder.layers.0.mlp.fc1.weight", "encoder.layers.0.mlp.fc1.weight", "transformer.resblocks.0.mlp.c_fc.weight")
    return (_text_encoder(file, _prefix(file, ("",), names, "a text encoder"), None),)


def check_checkpoint(file: Contents) -> None:
    """Raises InputError, naming what the file is, when it does not hold a whole pipeline."""
    lacking = [
        words
        for words, there in (
            ("a UNet", file.under(UNETS[0])),
            ("text encoders", any(file.under(prefix) for prefix in TEXT_ENCODERS)),
            ("a VAE", any(file.under(prefix) for prefix in VAES[:-1])),
        )
        if not there
    ]
    _refuse_others(file, "a checkpoint")
    if len(lacking) == 3:
        raise _other(file, "a checkpoint")
    if lacking:
        raise InputError(
            f"{file.path}: a checkpoint without {' and '.join(lacking)}: load its parts with UNETLoader, CLIPLoader and VAELoader, "
            "and what is missing from another file"
        )


def tokenizer_component(hidden_act: str) -> Component:
    """Returns CLIP's vocabulary, which the package ships; the two kinds of text encoder fill up
    their rows with different tokens.
    """
    files = tuple(configuration_identity(TOKENIZER / name) for name in ("vocab.json", "merges.txt"))
    return Component(str(TOKENIZER), files, json.dumps({"pad_token": PADDING[hidden_act], "model_max_length": 77}))


def _text_encoder(file: Contents, prefix: str, projecting: bool | None) -> TextEncoderRecipe:
    encoder = _component(file, prefix, lambda shapes: text_configuration(shapes, projecting))
    return TextEncoderRecipe(encoder, tokenizer_component(json.loads(encoder.configuration or "")["hidden_act"]))


def _component(file: Contents, prefix: str, configure: Callable[[Shapes], dict[str, Any]], rounding: str | None = None) -> Component:
    try:
        values = configure(file.under(prefix))
    except InputError as error:
        raise InputError(f"{file.path}: this is {error}") from None
    except KeyError as error:
        raise InputError(f"{file.path}: incomplete: {prefix}{error.args[0]} is missing: download it again") from None
    except (ValueError, IndexError):
        raise InputError(f"{file.path}: the shapes of its tensors are not those of Stable Diffusion 1, 2 or XL") from None
    return Component(file.path, (file.identity,), json.dumps(values), prefix, rounding)


def _prefix(file: Contents, prefixes: tuple[str, ...], names: tuple[str, ...], wanted: str, besides: tuple[str, ...] = ()) -> str:
    """Returns the prefix under which one of the names is there, and none of those besides."""
    _refuse_others(file, wanted)
    for prefix in prefixes:
        if any(prefix + name in file.shapes for name in names) and not any(prefix + name in file.shapes for name in besides):
            return prefix
    raise _other(file, wanted)


def _refuse_others(file: Contents, wanted: str) -> None:
    names = "\n".join(file.shapes)
    family = next((family for mark, family in FAMILIES.items() if re.search(mark, names, re.MULTILINE)), None)
    if family is not None:
        raise InputError(f"{file.path}: this is a {family} checkpoint; {RUNS}")
    if SCALED.search(names):
        raise InputError(f"{file.path}: its weights are 8-bit numbers with a scale each, expected {wanted} with plain numbers")


def _other(file: Contents, wanted: str) -> InputError:
    names = "\n".join(file.shapes)
    for mark, (kind, way) in KINDS.items():
        if re.search(mark, names, re.MULTILINE):
            return InputError(f"{file.path}: this is a {kind}, expected {wanted}; {way}")
    some = ", ".join(sorted(file.shapes)[:3]) or "none"
    return InputError(f"{file.path}: not {wanted} of Stable Diffusion 1, 2 or XL: its tensors are called {some} ...")
