"""Makes small pipelines, ControlNets and LoRAs with random weights, in the shapes of SD1.5, SD2 and
SDXL: for benches and tests of numbers.

Equal arguments give equal weights. What is zero in a fresh module (a ControlNet's zero
convolutions, a LoRA's up factor) is not zero here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import AutoencoderKL, ControlNetModel, EulerDiscreteScheduler, UNet2DConditionModel
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES

Family = Literal["sd1", "sd2", "sdxl"]
Naming = Literal["diffusers", "peft", "kohya"]

CHANNELS = (16, 24, 32)
GROUPS = 8
LAYERS_PER_BLOCK = 2
START, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 514  # 256 bytes, each also as the end of a word, and two special tokens

TEXT_ENCODERS: dict[Family, tuple[dict[str, Any], ...]] = {
    "sd1": ({"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "quick_gelu"},),
    "sd2": ({"hidden_size": 48, "num_hidden_layers": 4, "hidden_act": "gelu"},),
    "sdxl": (
        {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "quick_gelu"},
        {"hidden_size": 48, "num_hidden_layers": 4, "hidden_act": "gelu"},
    ),
}
PAD_TOKENS: dict[Family, tuple[str, ...]] = {"sd1": (END,), "sd2": ("!",), "sdxl": (END, "!")}
SCALING: dict[Family, float] = {"sd1": 0.18215, "sd2": 0.18215, "sdxl": 0.13025}
ADDED_TIME_WIDTH, POOLED_WIDTH = 8, 40  # SDXL: width per size number, width of the pooled text


def unet_config(
    family: Family, channels: tuple[int, ...] = CHANNELS, layers: int = LAYERS_PER_BLOCK
) -> dict[str, Any]:
    """Returns arguments of a UNet2DConditionModel of this family: three blocks of two layers, as
    SDXL has them, or of as many `layers`.
    """
    shared: dict[str, Any] = {
        "sample_size": 8,
        "block_out_channels": channels,
        "layers_per_block": layers,
        "norm_num_groups": GROUPS,
        "cross_attention_dim": sum(encoder["hidden_size"] for encoder in TEXT_ENCODERS[family]),
    }
    if family == "sd1":
        return shared | {
            "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            "attention_head_dim": 4,
        }
    if family == "sd2":
        return shared | {
            "down_block_types": ("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
            "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
            "attention_head_dim": (2, 3, 4),
            "use_linear_projection": True,
        }
    return shared | {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": (2, 3, 4),
        "use_linear_projection": True,
        "transformer_layers_per_block": (1, 1, 2),
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": ADDED_TIME_WIDTH,
        "projection_class_embeddings_input_dim": 6 * ADDED_TIME_WIDTH + POOLED_WIDTH,
    }


def make_pipeline(
    folder: str | Path,
    family: Family,
    seed: int,
    channels: tuple[int, ...] = CHANNELS,
    extra: int = 0,
    layers: int = LAYERS_PER_BLOCK,
) -> None:
    """Writes a pipeline in diffusers' folder layout, float32: UNet, text encoders, tokenizers, VAE
    (factor 8, 4 channels), scheduler.

    extra: input channels of the UNet beside the latent's, 5 for inpainting, 4 for editing by
    instruction; what is in them shows.
    """
    folder = Path(folder)
    second = ("_2",) if family == "sdxl" else ()
    with seeded(seed):
        unet = UNet2DConditionModel(**unet_config(family, channels, layers), in_channels=4 + extra)
        if extra:
            nn.init.normal_(unet.conv_in.weight[:, 4:])
        _save(unet, folder / "unet")
        _save(_vae(family), folder / "vae")
        for suffix, sizes, pad in zip(
            ("", *second), TEXT_ENCODERS[family], PAD_TOKENS[family], strict=True
        ):
            _save(_text_encoder(sizes, projected=bool(suffix)), folder / f"text_encoder{suffix}")
            tokenizer(pad).save_pretrained(folder / f"tokenizer{suffix}")
    scheduler(family).save_pretrained(folder / "scheduler")
    (folder / "model_index.json").write_text(json.dumps(model_index(family), indent=2) + "\n")


def make_refiner(folder: str | Path, seed: int, channels: tuple[int, ...] = CHANNELS) -> None:
    """Writes a pipeline like those in the shape of SDXL's refiner: its text comes from one encoder,
    as wide as its pooled text.
    """
    folder = Path(folder)
    width = TEXT_ENCODERS["sdxl"][1]["hidden_size"]
    sizes = {
        "cross_attention_dim": width,
        "projection_class_embeddings_input_dim": 5 * ADDED_TIME_WIDTH + width,
    }
    with seeded(seed):
        _save(UNet2DConditionModel(**unet_config("sdxl", channels) | sizes), folder / "unet")
        _save(_vae("sdxl"), folder / "vae")
        _save(
            _text_encoder(TEXT_ENCODERS["sdxl"][1], projected=True, pooled_width=width),
            folder / "text_encoder_2",
        )
        tokenizer("!").save_pretrained(folder / "tokenizer_2")
    scheduler("sdxl").save_pretrained(folder / "scheduler")
    index = {
        name: part
        for name, part in model_index("sdxl").items()
        if name not in ("text_encoder", "tokenizer")
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def make_controlnet(
    folder: str | Path,
    family: Family,
    seed: int,
    channels: tuple[int, ...] = CHANNELS,
    layers: int = LAYERS_PER_BLOCK,
) -> None:
    """Writes a ControlNet that fits `make_pipeline`'s UNet of this family; its zero convolutions
    are random.
    """
    with seeded(seed):
        taken = {
            name: value
            for name, value in unet_config(family, channels, layers).items()
            if name not in ("sample_size", "up_block_types")
        }
        model = ControlNetModel(**taken, conditioning_embedding_out_channels=(4, 8, 8, 12))
        for layer in (
            *model.controlnet_down_blocks,
            model.controlnet_mid_block,
            model.controlnet_cond_embedding.conv_out,
        ):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.normal_(layer.bias, std=0.02)
        _save(model, Path(folder))


def make_lora(
    path: str | Path,
    family: Family,
    rank: int,
    alpha: float,
    naming: Naming,
    seed: int,
    text_encoder: bool,
    channels: tuple[int, ...] = CHANNELS,
    layers: int = LAYERS_PER_BLOCK,
) -> None:
    """Writes a LoRA for `make_pipeline`'s UNet (linear layers, 1x1 and 3x3 convolutions) and, if
    asked, its text encoders.

    Files in kohya naming carry an alpha per module (and SDXL's original block names); the others
    carry it in diffusers' metadata.
    """
    with torch.device("meta"):
        unet = UNet2DConditionModel(**unet_config(family, channels, layers))
        encoders = [
            _text_encoder(sizes, projected=bool(index))
            for index, sizes in enumerate(TEXT_ENCODERS[family])
        ]
    parts: list[tuple[str, nn.Module, re.Pattern[str]]] = [("unet", unet, UNET_TARGETS)]
    if text_encoder:
        parts += [
            (f"text_encoder{'_2' * index}", encoder, TEXT_TARGETS)
            for index, encoder in enumerate(encoders)
        ]
    tensors: dict[str, Tensor] = {}
    metadata: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(seed)
    for part, model, targets in parts:
        modules = [(name, module) for name, module in model.named_modules() if targets.search(name)]
        for name, module in modules:
            down, up = factors(module, rank, generator)
            if naming == "kohya":
                key = _kohya_name(part, name, family, layers)
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


UNET_TARGETS = re.compile(
    r"attn[12]\.to_(q|k|v|out\.0)$|ff\.net\.(0\.proj|2)$|proj_(in|out)$|(resnets|downsamplers)\.0\.conv1?$|resnets\.0\.time_emb_proj$"
)
TEXT_TARGETS = re.compile(r"self_attn\.(q|k|v|out)_proj$|mlp\.fc[12]$")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        yield


def _save(model: Any, folder: Path) -> None:
    """Saves after moving norms away from one and zero and biases away from zero, so that a
    forgotten one shows.
    """
    for module in model.modules():
        if isinstance(module, nn.GroupNorm | nn.LayerNorm):
            nn.init.normal_(module.weight, 1.0, 0.1)
            nn.init.normal_(module.bias, 0.0, 0.1)
    with quiet(*LIBRARIES):
        model.save_pretrained(folder)


def _vae(family: Family) -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        scaling_factor=SCALING[family],
        force_upcast=family == "sdxl",
    )


def _text_encoder(
    sizes: dict[str, Any], projected: bool, pooled_width: int = POOLED_WIDTH
) -> CLIPTextModel | CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        **sizes,
        vocab_size=VOCABULARY,
        intermediate_size=2 * sizes["hidden_size"],
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=pooled_width,
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
        initializer_factor=4.0,
    )
    return CLIPTextModelWithProjection(config) if projected else CLIPTextModel(config)


def tokenizer(pad: str) -> CLIPTokenizer:
    """Makes one of single bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    # GPT-2's names of bytes
    alphabet = [chr(byte) for byte in printable] + [
        chr(256 + index) for index in range(len(others))
    ]
    tokens = [*alphabet, *(f"{letter}</w>" for letter in alphabet), START, END]
    return CLIPTokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[],
        pad_token=pad,
        model_max_length=77,
    )


def scheduler(family: Family) -> EulerDiscreteScheduler:
    """Makes the scheduler of a family, as published."""
    return EulerDiscreteScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type="v_prediction" if family == "sd2" else "epsilon",
        timestep_spacing="leading",
        steps_offset=1,
    )


def model_index(family: Family) -> dict[str, Any]:
    """Returns what stands in model_index.json."""
    shared: dict[str, Any] = {
        "_diffusers_version": "0.42.0",
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "image_encoder": [None, None],
        "feature_extractor": [None, None],
    }
    if family != "sdxl":
        return {
            "_class_name": "StableDiffusionPipeline",
            "requires_safety_checker": False,
            "safety_checker": [None, None],
        } | shared
    second = {
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
    }
    return (
        {"_class_name": "StableDiffusionXLPipeline", "force_zeros_for_empty_prompt": False}
        | shared
        | second
    )


def factors(module: nn.Module, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws down [r, in, (kh, kw)] and up [out, r, (1, 1)]."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    out_width, in_width, *kernel = weight.shape
    down = torch.randn(rank, in_width, *kernel, generator=generator) / (weight[0].numel() ** 0.5)
    up = torch.randn(out_width, rank, *([1] * len(kernel)), generator=generator) * 0.3
    return down, up


def _factor_names(part: str, naming: Naming) -> tuple[str, str]:
    if naming == "peft":
        return "lora_A", "lora_B"
    return (
        ("lora.down", "lora.up")
        if part == "unet"
        else ("lora_linear_layer.down", "lora_linear_layer.up")
    )


def _kohya_name(part: str, name: str, family: Family, layers: int) -> str:
    if part != "unet":
        prefix = {
            "text_encoder": "lora_te1" if family == "sdxl" else "lora_te",
            "text_encoder_2": "lora_te2",
        }[part]
        return f"{prefix}_text_model_{name.removeprefix('text_model.').replace('.', '_')}"
    original = _original_name(name, layers) if family == "sdxl" else name
    return "lora_unet_" + original.replace(".", "_")


def _original_name(name: str, layers: int) -> str:
    """Names a module as SDXL's original code does, whose names kohya's trainer uses for SDXL."""
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
