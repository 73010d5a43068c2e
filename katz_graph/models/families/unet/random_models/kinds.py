"""Builds small pipelines, ControlNets and LoRAs with random weights in the shapes of SD1.5, SD2,
SDXL and its refiner, for benches and numerical tests.

Equal arguments give equal weights. Weights that are zero in a fresh module (a ControlNet's zero
convolutions, a LoRA's up factor) are random here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import ControlNetModel, EulerDiscreteScheduler, UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import (
    END,
    POOLED_WIDTH,
    SIZES,
    WIDTHS,
    Role,
    clip,
    factors,
    seeded,
    tokenizer,
    vae,
)
from katz_graph.models.families.unet.random_models.by_hand import ByHand
from katz_graph.models.families.unet.random_models.full_size import FULL_SIZE, FullSize
from katz_graph.models.families.unet.random_models.original import sdxl_checkpoint
from katz_graph.models.families.unet.stages import PARTS
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES

Naming = Literal["diffusers", "peft", "kohya"]

CHANNELS = (16, 24, 32)
GROUPS = 8
LAYERS_PER_BLOCK = 2
SIZE_WIDTH = 8  # width of each size number's embedding
UNET_TARGETS = re.compile(
    r"attn[12]\.to_(q|k|v|out\.0)$|ff\.net\.(0\.proj|2)$|proj_(in|out)$|(resnets|downsamplers)\.0\.conv1?$|resnets\.0\.time_emb_proj$"
)
TEXT_TARGETS = re.compile(r"self_attn\.(q|k|v|out)_proj$|mlp\.fc[12]$")


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Describes a CLIP text encoder: index in `SIZES`, suffix of its folder, pad token, and prefix
    of its keys in kohya's LoRA files.
    """

    size: int
    suffix: str
    pad: str
    kohya: str = "lora_te"

    @property
    def width(self) -> int:
        return WIDTHS[self.size]

    def made(self, pooled_width: int) -> Any:
        return clip(SIZES[self.size], pooled_width if self.suffix else None)


@dataclass(frozen=True, slots=True)
class RandomUNet:
    """Describes the small pipelines of one kind of UNet."""

    pipeline: str
    """Class in diffusers."""
    index: Mapping[str, Any]
    """Further entries of model_index.json."""
    text_encoders: tuple[TextEncoder, ...]
    own: Mapping[str, Any]
    """UNet configuration values that are specific to this kind."""
    latent: LatentSpace
    prediction: str = "epsilon"
    pooled_width: int = POOLED_WIDTH
    """Width of the pooled text."""
    original: bool = False
    """Whether kohya's trainer uses the layer names of the original code."""
    upcast: bool = False  # the VAE overflows in float16
    stock: None = None  # the parity bench uses plain loops for UNets
    roles: frozenset[Role] = frozenset()
    """Uses in benches."""
    full_size: FullSize | None = None
    """Published sizes."""
    part: str = "unet"
    """Name of the network in a pipeline."""
    stages: tuple[str, ...] = PARTS
    """Stages of the network, in order."""

    def configuration(
        self, channels: tuple[int, ...] = CHANNELS, layers: int = LAYERS_PER_BLOCK
    ) -> dict[str, Any]:
        """Returns the arguments of a UNet2DConditionModel with three blocks of `layers` layers."""
        shared: dict[str, Any] = {
            "sample_size": 8,
            "block_out_channels": channels,
            "layers_per_block": layers,
            "norm_num_groups": GROUPS,
            "cross_attention_dim": sum(encoder.width for encoder in self.text_encoders),
        }
        return shared | dict(self.own)

    def make_pipeline(
        self,
        folder: str | Path,
        seed: int,
        channels: tuple[int, ...] = CHANNELS,
        extra: int = 0,
        layers: int = LAYERS_PER_BLOCK,
    ) -> None:
        """Saves a float32 pipeline in diffusers' folder layout: UNet, text encoders, tokenizers,
        VAE (factor 8, 4 channels), scheduler.

        extra: further input channels of the UNet, 5 for inpainting, 4 for instruction editing, with
        random weights.
        """
        folder = Path(folder)
        with seeded(seed):
            _save(self._unet(channels, extra, layers), folder / self.part)
            _save(vae(self.latent, self.upcast), folder / "vae")
            for one in self.text_encoders:
                _save(one.made(self.pooled_width), folder / f"text_encoder{one.suffix}")
                tokenizer(one.pad).save_pretrained(folder / f"tokenizer{one.suffix}")
        self.scheduler().save_pretrained(folder / "scheduler")
        (folder / "model_index.json").write_text(json.dumps(self.model_index(), indent=2) + "\n")

    def _unet(self, channels: tuple[int, ...], extra: int, layers: int) -> Any:
        unet = self.network_of(self.configuration(channels, layers) | {"in_channels": 4 + extra})
        if extra:
            nn.init.normal_(unet.conv_in.weight[:, 4:])
        return unet

    @staticmethod
    def network_of(configuration: Mapping[str, Any]) -> Any:
        """Builds a network from a configuration."""
        return UNet2DConditionModel(**configuration)

    @staticmethod
    def controlnet_of(configuration: Mapping[str, Any], hints: tuple[int, ...]) -> Any:
        """Builds a ControlNet from a network's configuration. `hints`: channels of its reference
        embedding.
        """
        taken = {
            name: value
            for name, value in configuration.items()
            if name not in ("sample_size", "up_block_types")
        }
        return ControlNetModel(**taken, conditioning_embedding_out_channels=hints)

    @staticmethod
    def checkpoint(network: nn.Module, vae: nn.Module, *texts: nn.Module) -> dict[str, Tensor]:
        """Returns the modules' weights as one checkpoint in the original layout; SDXL only."""
        return sdxl_checkpoint(network, vae, *texts)

    @staticmethod
    def by_hand(pipeline: Path, control: Path, side: int) -> ByHand:
        """Loads network and ControlNet to call stages without the engine, on latents with `side`
        cells a side.
        """
        return ByHand(pipeline, control, side)

    def make_controlnet(
        self,
        folder: str | Path,
        seed: int,
        channels: tuple[int, ...] = CHANNELS,
        layers: int = LAYERS_PER_BLOCK,
    ) -> None:
        """Saves a ControlNet for the UNet of `make_pipeline`, with random zero convolutions."""
        with seeded(seed):
            model = self.controlnet_of(self.configuration(channels, layers), (4, 8, 8, 12))
            for layer in (
                *model.controlnet_down_blocks,
                model.controlnet_mid_block,
                model.controlnet_cond_embedding.conv_out,
            ):
                nn.init.normal_(layer.weight, std=0.1)
                nn.init.normal_(layer.bias, std=0.02)
            _save(model, Path(folder))

    def make_lora(
        self,
        path: str | Path,
        rank: int,
        alpha: float,
        naming: Naming,
        seed: int,
        text_encoder: bool,
        channels: tuple[int, ...] = CHANNELS,
        layers: int = LAYERS_PER_BLOCK,
    ) -> None:
        """Saves a LoRA for the UNet of `make_pipeline` (linear layers, 1x1 and 3x3 convolutions)
        and, if `text_encoder`, its text encoders.

        Files in kohya naming store an alpha per module (and SDXL's original block names); others
        store alpha in diffusers' metadata.
        """
        with torch.device("meta"):
            unet = self._unet(channels, 0, layers)
            encoders = [(one, one.made(self.pooled_width)) for one in self.text_encoders]
        parts = [(self.part, self.lora_layers(unet))]
        if text_encoder:
            parts += [
                (f"text_encoder{one.suffix}", _matching(encoder, TEXT_TARGETS))
                for one, encoder in encoders
            ]
        tensors: dict[str, Tensor] = {}
        metadata: dict[str, Any] = {}
        generator = torch.Generator().manual_seed(seed)
        for part, modules in parts:
            for name, module in modules:
                down, up = factors(module, rank, generator)
                if naming == "kohya":
                    key = self.kohya_name(part, name, layers)
                    tensors |= {
                        f"{key}.lora_down.weight": down,
                        f"{key}.lora_up.weight": up,
                        f"{key}.alpha": torch.tensor(float(alpha)),
                    }
                else:
                    first, second = _factor_names(part, naming)
                    tensors |= {
                        f"{part}.{name}.{first}.weight": down,
                        f"{part}.{name}.{second}.weight": up,
                    }
            metadata |= {
                f"{part}.r": rank,
                f"{part}.lora_alpha": alpha,
                f"{part}.target_modules": [name for name, _ in modules],
            }
        notes = {} if naming == "kohya" else {"lora_adapter_metadata": json.dumps(metadata)}
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, str(path), {"format": "pt"} | notes)

    @staticmethod
    def lora_layers(unet: nn.Module) -> list[tuple[str, nn.Module]]:
        """Returns the layers of a UNet that a LoRA changes."""
        return _matching(unet, UNET_TARGETS)

    def scheduler(self) -> EulerDiscreteScheduler:
        """Builds the published scheduler."""
        return EulerDiscreteScheduler(
            beta_start=0.00085,
            beta_end=0.012,
            beta_schedule="scaled_linear",
            prediction_type=self.prediction,
            timestep_spacing="leading",
            steps_offset=1,
        )

    def model_index(self) -> dict[str, Any]:
        """Returns the content of model_index.json."""
        parts: dict[str, Any] = {
            "_class_name": self.pipeline,
            "_diffusers_version": "0.42.0",
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"],
            "scheduler": ["diffusers", "EulerDiscreteScheduler"],
            "image_encoder": [None, None],
            "feature_extractor": [None, None],
        }
        for one in self.text_encoders:
            kind = CLIPTextModelWithProjection if one.suffix else CLIPTextModel
            parts[f"text_encoder{one.suffix}"] = ["transformers", kind.__name__]
            parts[f"tokenizer{one.suffix}"] = ["transformers", "CLIPTokenizer"]
        return parts | dict(self.index)

    def kohya_name(self, part: str, name: str, layers: int) -> str:
        """Returns the name of a layer of a part in kohya's LoRA files. `layers`: per block."""
        for one in self.text_encoders:
            if part == f"text_encoder{one.suffix}":
                inner = name.removeprefix("text_model.").replace(".", "_")
                return f"{one.kohya}_text_model_{inner}"
        original = _original_name(name, layers) if self.original else name
        return "lora_unet_" + original.replace(".", "_")


SIZED = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "attention_head_dim": (2, 3, 4),
    "use_linear_projection": True,
    "transformer_layers_per_block": (1, 1, 2),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": SIZE_WIDTH,
}
UNSIZED = {
    "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
}
SD, SDXL = LatentSpace(4, 8, 0.18215), LatentSpace(4, 8, 0.13025)
UNSAFE = {"requires_safety_checker": False, "safety_checker": [None, None]}
UNFORCED = {"force_zeros_for_empty_prompt": False}
SECOND = TextEncoder(1, "_2", "!", "lora_te2")
KINDS = {
    "sd1": RandomUNet(
        pipeline="StableDiffusionPipeline",
        index=UNSAFE,
        text_encoders=(TextEncoder(0, "", END),),
        own=UNSIZED | {"attention_head_dim": 4},
        latent=SD,
        roles=frozenset({"drawn"}),
    ),
    "sd2": RandomUNet(
        pipeline="StableDiffusionPipeline",
        index=UNSAFE,
        text_encoders=(TextEncoder(1, "", "!"),),
        own=UNSIZED | {"attention_head_dim": (2, 3, 4), "use_linear_projection": True},
        latent=SD,
        prediction="v_prediction",
    ),
    "sdxl": RandomUNet(
        pipeline="StableDiffusionXLPipeline",
        index=UNFORCED,
        text_encoders=(TextEncoder(0, "", END, "lora_te1"), SECOND),
        own=SIZED | {"projection_class_embeddings_input_dim": 6 * SIZE_WIDTH + POOLED_WIDTH},
        latent=SDXL,
        original=True,
        upcast=True,
        roles=frozenset({"usual", "drawn"}),
        full_size=FULL_SIZE,
    ),
    # one text encoder; pooled text as wide as the text
    "refiner": RandomUNet(
        pipeline="StableDiffusionXLPipeline",
        index=UNFORCED,
        text_encoders=(SECOND,),
        own=SIZED | {"projection_class_embeddings_input_dim": 5 * SIZE_WIDTH + SECOND.width},
        latent=SDXL,
        pooled_width=SECOND.width,
        original=True,
        upcast=True,
        roles=frozenset({"finishing"}),
    ),
}


def _matching(model: nn.Module, targets: re.Pattern[str]) -> list[tuple[str, nn.Module]]:
    return [one for one in model.named_modules() if targets.search(one[0])]


def _save(model: Any, folder: Path) -> None:
    """Saves with random norms and biases, so that a missing parameter changes results."""
    for module in model.modules():
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.1)
            nn.init.normal_(module.bias, 0.0, 0.1)
    with quiet(*LIBRARIES):
        model.save_pretrained(folder)


def _factor_names(part: str, naming: Naming) -> tuple[str, str]:
    if naming == "peft":
        return "lora_A", "lora_B"
    return (
        ("lora.down", "lora.up")
        if part == "unet"
        else ("lora_linear_layer.down", "lora_linear_layer.up")
    )


def _original_name(name: str, layers: int) -> str:
    """Returns a module's name in SDXL's original code, which kohya's trainer uses for SDXL."""
    stride = layers + 1
    inner = {
        "conv1": "in_layers.2",
        "conv2": "out_layers.3",
        "time_emb_proj": "emb_layers.1",
        "conv_shortcut": "skip_connection",
    }
    match = re.match(
        r"(down|up|mid)_blocks?\.(?:(\d+)\.)?(resnets|attentions|downsamplers)\.(\d+)\.(.*)", name
    )
    if match is None:
        raise ValueError(f"no original name for {name}")
    side, block, kind, layer, rest = match[1], int(match[2] or 0), match[3], int(match[4]), match[5]
    place = {"resnets": 0, "attentions": 1, "downsamplers": 0}[kind]
    rest = inner.get(rest, rest) if kind == "resnets" else "op" if kind == "downsamplers" else rest
    if side == "mid":
        return f"middle_block.{1 if kind == 'attentions' else 2 * layer}.{rest}"
    if side == "up":
        return f"output_blocks.{block * stride + layer}.{place}.{rest}"
    within = layers if kind == "downsamplers" else layer
    return f"input_blocks.{block * stride + 1 + within}.{place}.{rest}"
