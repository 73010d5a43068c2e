"""Makes small pipelines with random weights in the shapes of Stable Diffusion 3 and 3.5; equal
arguments give equal weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModelWithProjection

from katz_graph.bench.random_models import END, TEXT_ENCODERS, VOCABULARY, seeded, tokenizer
from katz_graph.models.loading.quiet import quiet
from katz_graph.models.loading.store import LIBRARIES

Kind = Literal["sd3", "sd35"]

POOLED_WIDTH = 40  # of the second text encoder's projection
SIZES = TEXT_ENCODERS["sdxl"]
PADDING = 16  # columns of zeros behind the text encoders' own


def transformer_config(kind: Kind, blocks: int = 3) -> dict[str, Any]:
    """Returns arguments of an SD3Transformer2DModel: two heads, and in 3.5 norms of queries and
    keys and a second attention in the first two blocks.
    """
    later = {"qk_norm": "rms_norm", "dual_attention_layers": (0, 1)} if kind == "sd35" else {}
    widths = [sizes["hidden_size"] for sizes in SIZES]
    return {
        "sample_size": 8,
        "num_layers": blocks,
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "caption_projection_dim": 32,
        "joint_attention_dim": sum(widths) + PADDING,
        "pooled_projection_dim": widths[0] + POOLED_WIDTH,
        "pos_embed_max_size": 12,
    } | later


def make_transformer(kind: Kind, seed: int, blocks: int = 3) -> SD3Transformer2DModel:
    """Makes a transformer whose weights all count."""
    with seeded(seed):
        module = SD3Transformer2DModel(**transformer_config(kind, blocks)).eval()
        for parameter in module.parameters():
            nn.init.normal_(parameter, 0.0, 0.1)
    return module.requires_grad_(False)


def make_pipeline(folder: str | Path, kind: Kind, seed: int, blocks: int = 3) -> None:
    """Writes a pipeline in diffusers' folder layout, float32, without T5: transformer, two text
    encoders, tokenizers, a VAE of 16 channels with a shift, scheduler. The first text encoder's
    projection changes nothing, as in the published folders.
    """
    folder = Path(folder)
    with seeded(seed), quiet(*LIBRARIES):
        make_transformer(kind, seed, blocks).save_pretrained(folder / "transformer")
        _vae().save_pretrained(folder / "vae")
        for suffix, sizes, pad in zip(("", "_2"), SIZES, (END, "!"), strict=True):
            encoder = _text_encoder(sizes, POOLED_WIDTH if suffix else sizes["hidden_size"])
            if not suffix:
                nn.init.eye_(encoder.text_projection.weight)
            encoder.save_pretrained(folder / f"text_encoder{suffix}")
            tokenizer(pad).save_pretrained(folder / f"tokenizer{suffix}")
        FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    parts = {
        "transformer": ["diffusers", "SD3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
        "text_encoder_3": [None, None],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "tokenizer_2": ["transformers", "CLIPTokenizer"],
        "tokenizer_3": [None, None],
        "image_encoder": [None, None],
        "feature_extractor": [None, None],
    }
    index = {"_class_name": "StableDiffusion3Pipeline", "_diffusers_version": "0.42.0"} | parts
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n")


def _vae() -> AutoencoderKL:
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        latent_channels=16,
        scaling_factor=1.5305,
        shift_factor=0.0609,
        force_upcast=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def _text_encoder(sizes: dict[str, Any], projection: int) -> CLIPTextModelWithProjection:
    config = CLIPTextConfig(
        **sizes,
        vocab_size=VOCABULARY,
        intermediate_size=2 * sizes["hidden_size"],
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=projection,
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
        initializer_factor=4.0,
    )
    return CLIPTextModelWithProjection(config).to(torch.float32)
