"""Describes small pipelines with random weights in the shapes of HunyuanDiT 1.2 and 1.1,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import DDPMScheduler, EulerDiscreteScheduler
from torch import Tensor

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import (
    LONG_WIDTH,
    POOLED_WIDTH,
    T5_ENCODER,
    WIDTHS,
)
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": noise, "guidance_scale": guidance, "use_resolution_binning": False}


def euler(pipeline: Any) -> float:
    """Replaces DDPM's scheduler by Euler's and returns the factor of the initial noise. Euler
    starts with noise of variance σ² at the highest level σ, a KSampler with 1 + σ².
    """
    taken = EulerDiscreteScheduler.from_config(
        pipeline.scheduler.config, timestep_spacing="linspace"
    )
    pipeline.scheduler = taken
    return float((1 + taken.init_noise_sigma**-2) ** 0.5)


STOCK = Stock(arguments, schedule="normal", euler=euler)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ",", "(", ")"),
    *(start + letter for start in ("", "##") for letter in LETTERS),
    *("red", "circle", "above", "sand"),
)


def configuration(blocks: int, sizes: bool = False) -> Configuration:
    """Returns the arguments of a transformer with two heads and `blocks` blocks in each half.
    `sizes`: reads style and picture sizes.
    """
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": 2 * blocks,
        "sample_size": 8,
        "in_channels": 4,
        "patch_size": 2,
        "hidden_size": 32,
        "cross_attention_dim": WIDTHS[1],
        "cross_attention_dim_t5": LONG_WIDTH,
        "pooled_projection_dim": POOLED_WIDTH,
        "use_style_cond_and_image_meta_size": sizes,
    }


def control_configuration(network: Configuration, blocks: int) -> Configuration:
    """Returns the arguments of a ControlNet for a transformer with one more block in each half."""
    shared = {name: value for name, value in network.items() if name != "num_layers"}
    return shared | {"transformer_num_layers": 2 * (blocks + 1)}


class Words:
    """Replaces BERT's tokenizer, which published folders store as a word list."""

    def save_pretrained(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")


def bert() -> Any:
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=WIDTHS[1],
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return transformers.BertModel(config).to(torch.float32)


def scheduler(beta_end: float) -> DDPMScheduler:
    return DDPMScheduler(
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=beta_end,
        prediction_type="v_prediction",
        steps_offset=1,
        clip_sample=False,
    )


NEWER = RandomTransformer(
    pipeline="HunyuanDiTPipeline",
    network="HunyuanDiT2DModel",
    control="HunyuanDiT2DControlNetModel",
    configuration=configuration,
    control_configuration=control_configuration,
    scheduler=partial(scheduler, 0.018),
    text_encoders=((bert, Words, "BertTokenizer"), T5_ENCODER),
    latent=LatentSpace(channels=4, factor=8, scale=0.13025),
    absent=("safety_checker", "feature_extractor"),
    stock=STOCK,
)
OLDER = replace(
    NEWER, configuration=partial(configuration, sizes=True), scheduler=partial(scheduler, 0.03)
)
KINDS = {"hunyuan_dit": NEWER, "hunyuan_dit11": OLDER}
