"""Describes small pipelines with random weights in the shape of Z-Image,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.text.kinds import QWEN3


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    """Passes guidance minus one, because the pipeline adds the difference to the positive
    prediction.
    """
    return {"latents": noise, "guidance_scale": guidance - 1}


STOCK = Stock(arguments)


CHAT = (  # the language model's chat template for one message
    "{% for said in messages %}<|im_start|>{{ said.role }}\n{{ said.content }}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n' }}"
)


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a transformer with two heads."""
    return {
        "dim": 32,
        "n_layers": blocks,
        "n_refiner_layers": 1,
        "n_heads": 2,
        "n_kv_heads": 2,
        "cap_feat_dim": LONG_WIDTH,
        "axes_dims": [4, 6, 6],
    }


def control_configuration(network: Configuration, blocks: int) -> Configuration:
    """Returns the arguments of a ControlNet that acts after every second block."""
    shared = {name: network[name] for name in ("dim", "n_refiner_layers", "n_heads", "n_kv_heads")}
    places = [2 * number for number in range(blocks)]
    return shared | {"control_layers_places": places, "control_in_dim": 16}


def language_model() -> Any:
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=LONG_WIDTH,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.Qwen3Model(config).to(torch.float32)


def words() -> Any:
    taken = shipped(QWEN3)
    taken.chat_template = CHAT
    return taken


KINDS = {
    "z_image": RandomTransformer(
        pipeline="ZImagePipeline",
        network="ZImageTransformer2DModel",
        control="ZImageControlNetModel",
        configuration=configuration,
        control_configuration=control_configuration,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoders=((language_model, words, "Qwen2Tokenizer"),),
        latent=LatentSpace(channels=16, factor=8, scale=0.3611, shift=0.1159),
        absent=(),
        stock=STOCK,
        roles=frozenset({"full size"}),
        published={
            "dim": 3840,
            "n_layers": 30,
            "n_refiner_layers": 2,
            "n_heads": 30,
            "n_kv_heads": 30,
            "axes_dims": [32, 48, 48],
        },
    )
}
