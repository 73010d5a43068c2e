"""Describes small pipelines with random weights in the shape of Qwen-Image,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline
from torch import Tensor

from katz_graph.models.families.qwen_image.architecture import LATENT, MU
from katz_graph.models.families.qwen_image.stock import LAYERED
from katz_graph.models.families.shared.declarations import shifted_flow
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, frame_vae, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.text.kinds import QWEN2_5_VL

END, VISION_START, VISION_END, PICTURE, VIDEO = 151645, 151652, 151653, 151655, 151656


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    """Passes no guidance: the pipeline rescales a guided prediction, which no sampler does."""
    return {
        "latents": QwenImagePipeline._pack_latents(noise, *noise.shape),
        "true_cfg_scale": guidance,
        "max_sequence_length": 1024,
    }


def unpacked(made: Tensor, height: int, width: int) -> Tensor:
    latent: Tensor = QwenImagePipeline._unpack_latents(made, height, width, 8)
    return latent[:, :, 0]


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a transformer with two heads."""
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "in_channels": 64,
        "out_channels": 16,
        "joint_attention_dim": LONG_WIDTH,
        "axes_dims_rope": [4, 6, 6],
    }


def language_model() -> Any:
    text = {
        "vocab_size": 151936,
        "hidden_size": LONG_WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 4, 4], "rope_theta": 1e6},
        "tie_word_embeddings": True,
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": LONG_WIDTH,
        "fullatt_block_indexes": [1],
        "window_size": 56,
    }
    config = transformers.Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        image_token_id=PICTURE,
        video_token_id=VIDEO,
        tie_word_embeddings=True,
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config).to(torch.float32)


KINDS = {
    "qwen_image": RandomTransformer(
        pipeline="QwenImagePipeline",
        network="QwenImageTransformer2DModel",
        control="QwenImageControlNetModel",
        configuration=configuration,
        control_configuration=lambda network, blocks: network,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler.from_config(shifted_flow(MU)),
        text_encoders=((language_model, lambda: shipped(QWEN2_5_VL), "Qwen2Tokenizer"),),
        latent=LATENT,
        absent=(),
        stock=Stock(
            arguments,
            embedded_guidance=1.0,
            unpacked=unpacked,
            comparisons={"layers": LAYERED},
            inpainting=("QwenImageControlNetInpaintPipeline", {"extra_condition_channels": 4}),
        ),
        coder=frame_vae,
        wide=lambda heads, side: {"axes_dims_rope": [16, 24, 24]},
        published={
            "num_layers": 60,
            "num_attention_heads": 24,
            "attention_head_dim": 128,
            "axes_dims_rope": [16, 56, 56],
        },
    )
}
