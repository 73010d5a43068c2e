"""Makes small parts of pipelines with random weights, for benches and tests of numbers: what the
`random_models` of families put together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import torch
import transformers
from diffusers import AutoencoderKL
from torch import Tensor, nn
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.text.kinds import T5, EncoderKind
from katz_graph.models.text.vocabularies import SHIPPED, TOKENIZERS

START, END = "<|startoftext|>", "<|endoftext|>"
VOCABULARY = 514  # 256 bytes, each also as the end of a word, and two special tokens
SIZES: tuple[Mapping[str, Any], ...] = (
    {"hidden_size": 32, "num_hidden_layers": 3, "hidden_act": "quick_gelu"},
    {"hidden_size": 48, "num_hidden_layers": 4, "hidden_act": "gelu"},
)
"""What differs between the two text encoders of CLIP."""
WIDTHS = tuple(int(sizes["hidden_size"]) for sizes in SIZES)
POOLED_WIDTH = 40  # of the second one's projection
PADDING = 16  # columns of zeros behind CLIP's text encoders' own
LONG_WIDTH = sum(WIDTHS) + PADDING  # of T5 and of a language model

Role = Literal["usual", "finishing", "drawn", "timed", "streamed", "full size"]
"""What benches take a kind of models for: the `usual` one unless they say otherwise; `finishing`
what that one has begun; `drawn` by graphs at random, and compared with plain loops; `timed` beside
stock pipelines, `full size` on a GPU; `streamed`: its ControlNet's residuals.
"""
Encoder = tuple[Callable[[], Any], Callable[[], Any], str]
"""Makes a text encoder; makes its tokenizer; what a pipeline's index calls the tokenizer."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        yield


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


def clip(sizes: Mapping[str, Any], projection: int | None) -> Any:
    """Makes a text encoder of CLIP, in float32, which projects where that has a width."""
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
    """Makes a small T5, in float32."""
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
    """Loads the tokenizer that comes with the package."""
    return getattr(transformers, kind.tokenizer).from_pretrained(TOKENIZERS / SHIPPED[kind])


T5_ENCODER: Encoder = (t5, lambda: shipped(T5), "T5TokenizerFast")


def vae(space: LatentSpace, upcast: bool = False) -> AutoencoderKL:
    """Makes a VAE of eight pixels a cell; one whose latents have no shift has layers of
    quantisation.
    """
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


def factors(module: nn.Module, rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draws a LoRA's down [r, in, (kh, kw)] and up [out, r, (1, 1)]."""
    weight = module.weight
    assert isinstance(weight, Tensor)
    out_width, in_width, *kernel = weight.shape
    down = torch.randn(rank, in_width, *kernel, generator=generator) / (weight[0].numel() ** 0.5)
    up = torch.randn(out_width, rank, *([1] * len(kernel)), generator=generator) * 0.3
    return down, up
