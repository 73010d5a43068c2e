"""Builds small pipeline parts with random weights for benches and numerical tests. The families'
`random_models` combine them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import transformers
from diffusers import AutoencoderKL, AutoencoderKLQwenImage
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.text.kinds import T5, EncoderKind
from katz_graph.models.text.vocabularies import SHIPPED, TOKENIZERS

START, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 514  # 256 bytes, the same as ends of words, and two special tokens
SIZES: tuple[Mapping[str, Any], ...] = (
    {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "quick_gelu"},
    {"hidden_size": 48, "num_hidden_layers": 4, "hidden_act": "gelu"},
)
"""Sizes of the two CLIP text encoders."""
WIDTHS = tuple(int(sizes["hidden_size"]) for sizes in SIZES)
POOLED_WIDTH = 40  # width of the second encoder's projection
PADDING = 16  # columns of zeros after those of the CLIP text encoders
LONG_WIDTH = sum(WIDTHS) + PADDING  # width of T5 and of a language model

Role = Literal["usual", "finishing", "drawn", "timed", "streamed", "full size"]
"""How benches use a model kind. `usual`: the default; `finishing`: completes the usual model's
sampling; `drawn`: in random graphs compared with plain loops; `timed`: against stock pipelines;
`full size`: on a GPU; `streamed`: with streamed ControlNet residuals.
"""
Encoder = tuple[Callable[[], Any], Callable[[], Any], str]
"""Factory of a text encoder, factory of its tokenizer, class name of the tokenizer in
model_index.json.
"""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        yield


def tokenizer(pad: str) -> CLIPTokenizer:
    """Builds a byte-level tokenizer."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    # GPT-2's byte-to-character mapping
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


def clip(sizes: Mapping[str, Any], projection: int | None) -> Any:
    """Builds a float32 CLIP text encoder, with a projection if `projection` gives its width."""
    config = CLIPTextConfig(
        **sizes,
        vocab_size=VOCABULARY,
        intermediate_size=2 * sizes["hidden_size"],
        num_attention_heads=4,
        max_position_embeddings=77,
        projection_dim=projection or sizes["hidden_size"],
        bos_token_id=VOCABULARY - 2,
        eos_token_id=VOCABULARY - 1,
        initializer_factor=4.0,
    )
    kind = CLIPTextModelWithProjection if projection else CLIPTextModel
    return kind(config).to(torch.float32)


def t5() -> Any:
    """Builds a small float32 T5 encoder."""
    config = transformers.T5Config(
        vocab_size=32128,
        d_model=LONG_WIDTH,
        d_kv=16,
        d_ff=48,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    return transformers.T5EncoderModel(config).to(torch.float32)


def shipped(kind: EncoderKind) -> Any:
    """Loads the package's tokenizer."""
    return getattr(transformers, kind.tokenizer).from_pretrained(TOKENIZERS / SHIPPED[kind])


T5_ENCODER: Encoder = (t5, lambda: shipped(T5), "T5TokenizerFast")


def mistral_words() -> bytes:
    """Returns a vocabulary of bytes in the format of Mistral's models, with their special words."""
    special = {1: "<s>", 2: "</s>", 3: "[INST]", 4: "[/INST]", 11: "<pad>"}
    special |= {17: "[SYSTEM_PROMPT]", 18: "[/SYSTEM_PROMPT]"}
    words = [base64.b64encode(bytes([byte])).decode() for byte in range(256)]
    model = {
        "config": {"pattern": r" ?\w+|\s+|.", "default_vocab_size": 1256},
        "vocab": [{"rank": rank, "token_bytes": word} for rank, word in enumerate(words)],
        "special_tokens": [
            {"rank": rank, "token_str": special.get(rank, f"<SPECIAL_{rank}>")}
            for rank in range(1000)
        ],
    }
    return json.dumps(model).encode()


def vae(space: LatentSpace, upcast: bool = False) -> AutoencoderKL:
    """Builds a VAE with a factor of 8. It has quantisation layers if its latents have no shift."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(8, 8, 16, 16),
        layers_per_block=1,
        norm_num_groups=4,
        sample_size=64,
        latent_channels=space.channels,
        scaling_factor=space.scale,
        shift_factor=space.shift or None,
        force_upcast=upcast,
        use_quant_conv=not space.shift,
        use_post_quant_conv=not space.shift,
    )


def frame_vae(space: LatentSpace) -> AutoencoderKLQwenImage:
    """Builds a VAE with statistics of each channel and a factor of 8."""
    return AutoencoderKLQwenImage(base_dim=8, z_dim=space.channels, num_res_blocks=1)


def factors(module: nn.Module, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws the two factors of a LoRA: down [r, in, (kh, kw)] and up [out, r, (1, 1)]."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    out_width, in_width, *kernel = weight.shape
    down = torch.randn(rank, in_width, *kernel, generator=generator) / (weight[0].numel() ** 0.5)
    up = torch.randn(out_width, rank, *([1] * len(kernel)), generator=generator) * 0.3
    return down, up
