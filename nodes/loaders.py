"""Loads models as recipes: weights load only when a node runs the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Field

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import FileIdentity, Lora, digest
from katz_graph.files.urls import is_url, shown
from katz_graph.models.configuration import union_types
from katz_graph.models.family import known, text_sets
from katz_graph.models.fetching.file_cache import FileCache, remote_identity
from katz_graph.models.loading.identity import PEFT_CONFIGURATION, PEFT_FILE, file_identity
from katz_graph.models.loading.sources import (
    controlnet_files,
    controlnet_recipe,
    network_recipe,
    pipeline_recipes,
    typed_clip_recipe,
    vae_recipe,
)
from katz_graph.models.text.kinds import T5, kind_of
from katz_graph.node import FileChoice, Node, Widget
from katz_graph.node.types import Context
from katz_graph.node.wires import Clip, ControlNet, Model, Vae

TokenCount = Annotated[int, Field(ge=0, le=10000)]
LoraStrength = Annotated[float, Field(ge=-100.0, le=100.0), Widget(step=0.01)]
TextEncoderDevice = Literal["default", "cpu"]
ROUNDING = {
    "default": None,
    "fp8_e4m3fn": "float8_e4m3fn",
    "fp8_e4m3fn_fast": "float8_e4m3fn",
    "fp8_e5m2": "float8_e5m2",
}
UnionType = Literal[
    "auto",
    "openpose",
    "depth",
    "hed/pidi/scribble/ted",
    "canny/lineart/anime_lineart/mlsd",
    "normal",
    "segment",
    "tile",
    "repaint",
]
UNION_TYPES = {
    kind: (number,) if number >= 0 else ()
    for number, kind in enumerate(get_args(UnionType), start=-1)
}


class CheckpointLoaderSimple(Node, category="loaders", title="Load Checkpoint"):
    """Loads a pipeline (diffusion model, text encoders and VAE) by name: a single file, a folder in
    diffusers' layout, or a hub id.
    """

    ckpt_name: Annotated[str, FileChoice("checkpoints")]

    def fingerprint(self, context: Context) -> Any:
        found = pipeline_recipes(context.folders.resolve("checkpoints", self.ckpt_name))
        return [digest(recipe) for recipe in found]

    def run(self, context: Context) -> tuple[Model, Clip, Vae]:
        return _checkpoint(self.ckpt_name, context)


class CheckpointLoader(Node, category="advanced/loaders", title="Load Checkpoint With Config"):
    """Loads a pipeline by name, as Load Checkpoint does. Ignores the configuration's name: the file
    determines the model.
    """

    config_name: str
    ckpt_name: Annotated[str, FileChoice("checkpoints")]

    def fingerprint(self, context: Context) -> Any:
        found = pipeline_recipes(context.folders.resolve("checkpoints", self.ckpt_name))
        return [digest(recipe) for recipe in found]

    def run(self, context: Context) -> tuple[Model, Clip, Vae]:
        context.warn(
            f"CheckpointLoader: config_name {self.config_name!r} is not used: the file determines "
            "the model"
        )
        return _checkpoint(self.ckpt_name, context)


class UNETLoader(Node, category="advanced/loaders", title="Load Diffusion Model"):
    """Loads a diffusion model by name. An 8-bit weight_dtype rounds its weights, which are stored
    and computed in the engine's dtype.
    """

    unet_name: Annotated[str, FileChoice("unet")]
    weight_dtype: Literal["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"] = "default"

    def fingerprint(self, context: Context) -> Any:
        return digest(self._recipe(context))

    def run(self, context: Context) -> Model:
        if self.weight_dtype.endswith("_fast"):
            context.warn(
                "UNETLoader: fp8_e4m3fn_fast is computed as fp8_e4m3fn: without 8-bit arithmetic"
            )
        return self._recipe(context)

    def _recipe(self, context: Context) -> Model:
        return network_recipe(
            context.folders.resolve("unet", self.unet_name), ROUNDING[self.weight_dtype]
        )


class VAELoader(Node, category="loaders", title="Load VAE"):
    """Loads a VAE by name."""

    vae_name: Annotated[str, FileChoice("vae")]

    def fingerprint(self, context: Context) -> Any:
        return digest(self.run(context))

    def run(self, context: Context) -> Vae:
        return vae_recipe(context.folders.resolve("vae", self.vae_name))


class CLIPLoader(Node, category="advanced/loaders", title="Load CLIP", optional=("device",)):
    """Loads a text encoder by name, for models of this type."""

    clip_name: Annotated[str, FileChoice("clip")]
    type: Literal[
        "stable_diffusion", "stable_cascade", "sd3", "stable_audio", "mochi", "ltxv", "pixart",
        "cosmos", "lumina2", "wan", "hidream", "chroma", "ace", "omnigen2", "qwen_image",
        "hunyuan_image", "flux2", "ovis", "longcat_image", "cogvideox", "lens", "pixeldit",
        "ideogram4", "boogu", "krea2", "flux3", "joyimage", "mage", "minimax",
    ] = "stable_diffusion"  # fmt: skip
    device: TextEncoderDevice = "default"

    def fingerprint(self, context: Context) -> Any:
        return digest(self._recipe(context))

    def run(self, context: Context) -> Clip:
        _on_engine_device(self, self.device, context)
        return self._recipe(context)

    def _recipe(self, context: Context) -> Clip:
        return _clip(self, self.type, (self.clip_name,), context)


class DualCLIPLoader(
    Node, category="advanced/loaders", title="DualCLIPLoader", optional=("device",)
):
    """Loads two text encoders, in any order, for models of this type."""

    clip_name1: Annotated[str, FileChoice("clip")]
    clip_name2: Annotated[str, FileChoice("clip")]
    type: Literal[
        "sdxl", "sd3", "flux", "hunyuan_video", "hidream", "hunyuan_image", "hunyuan_video_15",
        "kandinsky5", "kandinsky5_image", "ltxv", "newbie", "ace",
    ] = "sdxl"  # fmt: skip
    device: TextEncoderDevice = "default"

    def fingerprint(self, context: Context) -> Any:
        return digest(self._recipe(context))

    def run(self, context: Context) -> Clip:
        _on_engine_device(self, self.device, context)
        return self._recipe(context)

    def _recipe(self, context: Context) -> Clip:
        return _clip(self, self.type, (self.clip_name1, self.clip_name2), context)


class TripleCLIPLoader(Node, category="advanced/loaders", title="TripleCLIPLoader"):
    """Loads three text encoders, in any order: CLIP-L, OpenCLIP's bigG and T5."""

    clip_name1: Annotated[str, FileChoice("clip")]
    clip_name2: Annotated[str, FileChoice("clip")]
    clip_name3: Annotated[str, FileChoice("clip")]

    def fingerprint(self, context: Context) -> Any:
        return digest(self.run(context))

    def run(self, context: Context) -> Clip:
        names = self.clip_name1, self.clip_name2, self.clip_name3
        return _clip(self, text_sets(encoders=3)[0][1].type, names, context)


class CLIPSetLastLayer(Node, category="conditioning", title="CLIP Set Last Layer"):
    """Selects an earlier layer of the text encoders: -1 is the last, -2 the one before."""

    stop_at_clip_layer: Annotated[int, Field(ge=-24, le=-1)] = -1

    def run(self, clip: Clip) -> Clip:
        return replace(clip, last_layer=self.stop_at_clip_layer)


class T5TokenizerOptions(Node, category="_for_testing/conditioning", title="T5 Tokenizer Options"):
    """Pads texts for T5 by min_padding tokens, then up to min_length, instead of the model's
    length. Does not affect other text encoders.
    """

    min_padding: TokenCount = 0
    min_length: TokenCount = 0

    def run(self, clip: Clip) -> Clip:
        if clip.layout.lengths:
            raise InputError(
                "T5TokenizerOptions: this model reads texts of "
                f"{' and '.join(map(str, clip.layout.lengths))} tokens only: remove the node"
            )
        if T5 not in {kind_of(one.encoder) for one in clip.encoders}:
            return clip
        layout = replace(clip.layout, padding=self.min_padding, least=self.min_length)
        return replace(clip, layout=layout)


class ControlNetLoader(Node, category="loaders", title="Load ControlNet Model"):
    """Loads a ControlNet by name: a single file in either layout, a folder, or a URL of a
    safetensors file.
    """

    control_net_name: Annotated[str, FileChoice("controlnet")]

    def fingerprint(self, context: Context) -> Any:
        return digest(self.run(context))

    def run(self, context: Context) -> ControlNet:
        return controlnet_recipe(_control_net(context, self.control_net_name))


class DiffControlNetLoader(Node, category="loaders", title="Load ControlNet Model (diff)"):
    """Loads a ControlNet from a file that may hold only differences from the model's weights."""

    control_net_name: Annotated[str, FileChoice("controlnet")]

    def fingerprint(self, context: Context) -> Any:
        return digest(controlnet_files(_control_net(context, self.control_net_name)))

    def run(self, model: Model, context: Context) -> ControlNet:
        return controlnet_recipe(_control_net(context, self.control_net_name), model.network)


class SetUnionControlNetType(Node, category="conditioning/controlnet"):
    """Sets the kind of reference for a ControlNet that supports several kinds."""

    type: UnionType = "auto"

    def run(self, control_net: ControlNet, context: Context) -> ControlNet:
        known = union_types(control_net)
        if not known:
            context.warn(
                f"SetUnionControlNetType: {control_net.control_net.folder} has only one type of "
                "reference, so the type is not used"
            )
            return control_net
        if any(number >= known for number in UNION_TYPES[self.type]):
            raise InputError(
                f"SetUnionControlNetType, type: {self.type} is not supported by "
                f"{control_net.control_net.folder}, which has only the first {known} types after "
                "auto: choose one of them, or load a ControlNet that has this type, such as a "
                "promax file"
            )
        return replace(control_net, types=UNION_TYPES[self.type])


class LoraLoader(Node, category="loaders", title="Load LoRA"):
    """Applies a LoRA, given by name or by the URL of a safetensors file (fetched when needed), to a
    model and its text encoders, with separate strengths.
    """

    lora_name: Annotated[str, FileChoice("loras")]
    strength_model: LoraStrength = 1.0
    strength_clip: LoraStrength = 1.0

    def fingerprint(self, context: Context) -> Any:
        return digest(_lora(context, self.lora_name))

    def run(self, model: Model, clip: Clip, context: Context) -> tuple[Model, Clip]:
        file = _lora(context, self.lora_name)
        patched_model = (
            model.with_lora(Lora(file, self.strength_model)) if self.strength_model else model
        )
        patched_clip = (
            clip.with_lora(Lora(file, self.strength_clip)) if self.strength_clip else clip
        )
        return patched_model, patched_clip


class LoraLoaderModelOnly(Node, category="loaders"):
    """Applies a LoRA, given by name or by the URL of a safetensors file, to a model, without its
    part for text encoders.
    """

    lora_name: Annotated[str, FileChoice("loras")]
    strength_model: LoraStrength = 1.0

    def fingerprint(self, context: Context) -> Any:
        return digest(_lora(context, self.lora_name))

    def run(self, model: Model, context: Context) -> Model:
        file = _lora(context, self.lora_name)
        return model.with_lora(Lora(file, self.strength_model)) if self.strength_model else model


def _checkpoint(name: str, context: Context) -> tuple[Model, Clip, Vae]:
    """Returns the recipes of a checkpoint; warns of missing parts."""
    model, clip, vae = pipeline_recipes(context.folders.resolve("checkpoints", name))
    for one in (clip.missing, vae.missing):
        if one is not None:
            context.warn(one.reason)
    return model, clip, vae


def _lora(context: Context, name: str) -> FileIdentity:
    """Returns the identity of a LoRA's file, without downloading from URLs."""
    if not is_url(name):
        return file_identity(context.folders.resolve("loras", name))
    here = context.folders.of_url("loras", name)
    if here is None and urlsplit(name).path.endswith(f"/{PEFT_FILE}"):
        raise InputError(
            f"{shown(name)}: {PEFT_CONFIGURATION} next to it sets the strength, but is not "
            "fetched: download both into a folder of loras"
        )
    if here is not None:
        return file_identity(here)
    with _cancellation(context) as cancelled:
        return remote_identity(name, cancelled, context.folders.fetch)


def _control_net(context: Context, name: str) -> Path:
    """Returns the file or folder of a ControlNet; downloads it if `name` is a URL that is not
    cached.
    """
    if not is_url(name):
        return context.folders.resolve("controlnet", name)
    here = context.folders.of_url("controlnet", name)
    if here is not None:
        return here
    cache = FileCache.of_this_machine()
    with _cancellation(context) as cancelled:
        file = cache.identity(name, cancelled, context.folders.fetch)
        if not cache.holds(file):
            context.warn(f"{shown(name)} is fetched to {cache.place(file)}")
        return cache.local_file(file, cancelled)


@contextmanager
def _cancellation(context: Context) -> Iterator[Callable[[], bool]]:
    """Yields a function that returns whether the run was cancelled."""
    stopped = Event()
    forget = context.on_cancel(stopped.set)
    try:
        yield stopped.is_set
    finally:
        forget()


def _clip(node: Node, kind: str, names: Sequence[str], context: Context) -> Clip:
    """Returns the text encoders of these files in the layout of a model type."""
    types = dict.fromkeys(one.type for _, one in text_sets(len(names)))
    if kind not in types:
        runs = known(lambda family: family.short)
        raise InputError(
            f"{type(node).__name__}, type: {kind} is not supported; Katz Graph runs {runs}: "
            f"choose {' or '.join(types)}"
        )
    return typed_clip_recipe([context.folders.resolve("clip", name) for name in names], kind)


def _on_engine_device(node: Node, device: str, context: Context) -> None:
    if device != "default":
        context.warn(
            f"{type(node).__name__}: device {device} is not used: text encoders run where "
            "the model runs"
        )
