"""Describes small pipelines with random weights in the shapes of FLUX.2 dev and Klein,
and how to call diffusers' pipelines.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
import transformers
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler
from torch import Tensor

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.families.flux2.architecture import LATENT
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, mistral_words, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.families.shared.transformer_stack import unpacked
from katz_graph.models.text.kinds import QWEN3
from katz_graph.models.text.tekken import PADDING, START, tekken_tokenizer
from katz_graph.sampling.schedules import levels_for_size

STATES = 3  # of the text encoder, side by side
MISTRAL_CHAT = (
    "{{ bos_token }}[SYSTEM_PROMPT]{{ messages[0].content[0].text }}[/SYSTEM_PROMPT]"
    "[INST]{{ messages[1].content[0].text }}[/INST]"
)
QWEN_CHAT = (
    "{% for said in messages %}<|im_start|>{{ said.role }}\n{{ said.content }}<|im_end|>\n"
    "{% endfor %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}"
)
TEXT_SIZES = {
    "hidden_size": LONG_WIDTH // STATES,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


QWEN_SIZES = {"vocab_size": 151936, "num_hidden_layers": 28, "tie_word_embeddings": True}


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": noise, "guidance_scale": guidance}


def tokens_unpacked(made: Tensor, height: int, width: int) -> Tensor:
    return unpacked(made, height // LATENT.factor, width // LATENT.factor, 1)


def configuration(blocks: int, guided: bool) -> Configuration:
    """Returns arguments of a transformer with two heads and one single block less than double
    blocks. `guided`: takes guidance.
    """
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "num_single_layers": blocks - 1,
        "joint_attention_dim": LONG_WIDTH,
        "guidance_embeds": guided,
        "axes_dims_rope": [4, 4, 4, 4],
    }


def mistral() -> Any:
    sees = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 8, "head_dim": 8}
    sees |= {"num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    text = {"model_type": "mistral", "num_hidden_layers": 32, "vocab_size": 1280, **TEXT_SIZES}
    config = transformers.Mistral3Config(text_config=text, vision_config=sees)
    return transformers.Mistral3ForConditionalGeneration(config).to(torch.float32)


def mistral_tokenizer() -> Any:
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tekken_tokenizer(mistral_words()).backend_tokenizer,
        bos_token=START,
        pad_token=PADDING,
        padding_side="left",
        chat_template=MISTRAL_CHAT,
    )


def qwen3() -> Any:
    config = transformers.Qwen3Config(**TEXT_SIZES, **QWEN_SIZES)
    return transformers.Qwen3ForCausalLM(config).to(torch.float32)


def qwen3_tokenizer() -> Any:
    words = shipped(QWEN3)
    words.chat_template = QWEN_CHAT
    return words


def coder(space: LatentSpace) -> Any:
    """Builds a VAE with narrow layers, and draws its running statistics."""
    module = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=space.channels // 4,
    )
    module.bn.running_mean.normal_()
    module.bn.running_var.uniform_(0.5, 2.0)
    return module


DEV = RandomTransformer(
    pipeline="Flux2Pipeline",
    network="Flux2Transformer2DModel",
    control="",
    configuration=partial(configuration, guided=True),
    control_configuration=lambda network, blocks: network,
    scheduler=lambda: FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0),
    text_encoders=((mistral, mistral_tokenizer, "PreTrainedTokenizerFast"),),
    latent=LATENT,
    absent=(),
    stock=Stock(arguments, levels=levels_for_size, embedded_guidance=3.5, unpacked=tokens_unpacked),
    coder=coder,
    roles=frozenset({"full size"}),
    wide=lambda heads, side: {"axes_dims_rope": [16, 16, 16, 16]},
    published={
        "num_layers": 8,
        "num_single_layers": 48,
        "num_attention_heads": 48,
        "attention_head_dim": 128,
        "axes_dims_rope": [32, 32, 32, 32],
    },
)
KLEIN = replace(
    DEV,
    pipeline="Flux2KleinPipeline",
    configuration=partial(configuration, guided=False),
    text_encoders=((qwen3, qwen3_tokenizer, "Qwen2Tokenizer"),),
    stock=Stock(arguments, levels=levels_for_size, negative=""),
    roles=frozenset(),
    published={
        **DEV.published,
        "num_layers": 8,
        "num_single_layers": 24,
        "num_attention_heads": 32,
    },
)
KINDS = {"flux2": DEV, "klein": KLEIN}
