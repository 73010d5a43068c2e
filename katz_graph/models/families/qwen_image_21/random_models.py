"""Describes small pipelines with random weights in the shape of Qwen-Image 2.1,
and how to call diffusers' pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from diffusers import AutoencoderKLQwenImage21, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.qwen_image_21.architecture import LATENT, SCHEDULER
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.families.shared.transformer_stack import packed, unpacked
from katz_graph.models.text.kinds import QWEN3_VL

VISION_START, VISION_END, PICTURE, VIDEO = 151652, 151653, 151655, 151656


class Words(transformers.ProcessorMixin):  # type: ignore[misc]
    """Processes texts as `Qwen3VLProcessor`, which needs torchvision even without pictures."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def apply_chat_template(self, messages: Sequence[Any], **_: Any) -> list[list[int]]:
        ((message, (content,)),) = ((one, one["content"]) for one in messages)
        text = f"<|im_start|>{message['role']}\n{content['text']}<|im_end|>\n"
        return [self.tokenizer.encode(text)]

    def __call__(self, text: Sequence[str], **options: Any) -> Any:
        return self.tokenizer(list(text), **options)


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": packed(noise, side=1), "true_cfg_scale": guidance}


def latent_of(made: Tensor, height: int, width: int) -> Tensor:
    return unpacked(made, height // LATENT.factor, width // LATENT.factor, side=1)


def parts(folder: Path) -> dict[str, Any]:
    return {"processor": Words(transformers.Qwen2Tokenizer.from_pretrained(folder / "processor"))}


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a transformer with two heads."""
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "context_in_dim": LONG_WIDTH,
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
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 5e6},
    }
    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": LONG_WIDTH,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    config = transformers.Qwen3VLConfig(
        text_config=text,
        vision_config=vision,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        image_token_id=PICTURE,
        video_token_id=VIDEO,
    )
    return transformers.Qwen3VLForConditionalGeneration(config).to(torch.float32)


def coder(space: LatentSpace) -> Any:
    """Builds a VAE with narrow layers."""
    return AutoencoderKLQwenImage21(base_dim=8, decoder_base_dim=16, num_res_blocks=1)


KINDS = {
    "qwen_image_21": RandomTransformer(
        pipeline="QwenImage21Pipeline",
        network="QwenImage21Transformer2DModel",
        control="",
        configuration=configuration,
        control_configuration=lambda network, blocks: network,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler.from_config(dict(SCHEDULER)),
        text_encoders=((language_model, lambda: shipped(QWEN3_VL), "Qwen3VLProcessor"),),
        latent=LATENT,
        absent=(),
        stock=Stock(arguments, unpacked=latent_of, parts=parts),
        coder=coder,
        wide=lambda heads, side: {"axes_dims_rope": [16, 24, 24]},
        published={
            "num_layers": 32,
            "num_attention_heads": 32,
            "attention_head_dim": 128,
            "axes_dims_rope": [16, 56, 56],
        },
    )
}
