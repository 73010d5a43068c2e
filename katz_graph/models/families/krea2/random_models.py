"""Describes small pipelines with random weights in the shape of Krea 2,
and how to call diffusers' pipeline.
"""

from __future__ import annotations

from typing import Any

import transformers
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from katz_graph.models.families.krea2.architecture import LATENT, MU, STATES
from katz_graph.models.families.shared.declarations import shifted_flow
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, frame_vae, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.families.shared.transformer_stack import packed
from katz_graph.models.families.shared.transformer_stack import unpacked as latent_of
from katz_graph.models.text.kinds import QWEN3_VL


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    """Passes guidance minus one, because the pipeline adds the difference to the positive
    prediction.
    """
    # texts are filled to this length, which changes no picture
    return {"latents": packed(noise), "guidance_scale": guidance - 1, "max_sequence_length": 128}


def unpacked(made: Tensor, height: int, width: int) -> Tensor:
    return latent_of(made, height // 16, width // 16)


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a transformer with two heads, which share keys and values."""
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 48,
        "num_layers": blocks,
        "in_channels": 64,
        "text_hidden_dim": LONG_WIDTH,
        "text_num_attention_heads": 4,
        "text_num_key_value_heads": 4,
        "text_intermediate_size": 48,
        "num_layerwise_text_blocks": 1,
        "num_refiner_text_blocks": 1,
        "axes_dims_rope": [4, 6, 6],
    }


def language_model() -> Any:
    text = {
        "vocab_size": 151936,
        "hidden_size": LONG_WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": STATES[-1] + 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2], "rope_theta": 5e6},
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 2,
        "out_hidden_size": LONG_WIDTH,
        "deepstack_visual_indexes": [0],
    }
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision)
    return transformers.Qwen3VLModel(config).float()


KINDS = {
    "krea2": RandomTransformer(
        pipeline="Krea2Pipeline",
        network="Krea2Transformer2DModel",
        control="",
        configuration=configuration,
        control_configuration=lambda network, blocks: network,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler.from_config(shifted_flow(MU)),
        text_encoders=((language_model, lambda: shipped(QWEN3_VL), "Qwen2Tokenizer"),),
        latent=LATENT,
        absent=(),
        stock=Stock(arguments, unpacked=unpacked),
        settings={"is_distilled": True},  # levels do not depend on the picture's size
        coder=frame_vae,
        wide=lambda heads, side: {"num_key_value_heads": heads, "axes_dims_rope": [16, 24, 24]},
        published={
            "num_layers": 28,
            "num_attention_heads": 48,
            "num_key_value_heads": 12,
            "attention_head_dim": 128,
            "intermediate_size": 16384,
            "axes_dims_rope": [32, 48, 48],
        },
    )
}
