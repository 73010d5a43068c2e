"""Describes small pipelines with random weights in the shape of Anima, and how to call diffusers'
modular blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from diffusers import (
    AutoencoderKLQwenImage,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
)
from diffusers.models.transformers import transformer_cosmos
from diffusers.modular_pipelines.anima.modular_blocks_anima import AnimaAutoBlocks
from torch import Tensor

from katz_graph.models.families.anima.architecture import LATENT, SCHEDULER, TRANSFORMER
from katz_graph.models.families.anima.module import AnimaTransformer
from katz_graph.models.families.shared.random_parts import LONG_WIDTH, frame_vae, shipped
from katz_graph.models.families.shared.random_transformers import (
    Configuration,
    RandomTransformer,
    Stock,
)
from katz_graph.models.text.kinds import QWEN3, T5


class Pipeline:
    """Calls diffusers' modular blocks as a pipeline is called."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        network = AnimaTransformer.from_pretrained(folder / "transformer", dtype=dtype)
        self.blocks: Any = AnimaAutoBlocks().init_pipeline()
        self.blocks.update_components(
            transformer=network,
            text_conditioner=network.llm_adapter,
            text_encoder=transformers.Qwen3Model.from_pretrained(folder / "text_encoder"),
            tokenizer=shipped(QWEN3),
            t5_tokenizer=shipped(T5),
            vae=AutoencoderKLQwenImage.from_pretrained(folder / "vae", dtype=dtype),
            scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder / "scheduler"),
        )

    def __call__(self, guidance_scale: float, output_type: str, **given: Any) -> Any:
        """Returns an object with the pictures, or with the latent."""
        self.blocks.update_components(guider=ClassifierFreeGuidance(guidance_scale=guidance_scale))
        wanted = "latents" if output_type == "latent" else "images"
        with without_torchvision():
            made = self.blocks(output_type="pt", output=wanted, **given)
        return SimpleNamespace(images=made)

    def set_progress_bar_config(self, **settings: Any) -> None:
        self.blocks.set_progress_bar_config(**settings)

    def to(self, device: torch.device) -> Pipeline:
        self.blocks.to(device)
        return self


@contextmanager
def without_torchvision() -> Iterator[None]:
    """Replaces torchvision's resizing of the padding mask inside the `with` statement."""
    resizing = SimpleNamespace(resize=lambda mask, size, interpolation: F.interpolate(mask, size))
    modes = SimpleNamespace(NEAREST="nearest")
    before = getattr(transformer_cosmos, "transforms", None)
    transformer_cosmos.transforms = SimpleNamespace(functional=resizing, InterpolationMode=modes)
    try:
        yield
    finally:
        transformer_cosmos.transforms = before


def arguments(noise: Tensor, guidance: float) -> dict[str, Any]:
    return {"latents": noise[:, :, None], "guidance_scale": guidance}


def unpacked(made: Tensor, height: int, width: int) -> Tensor:
    return made[:, :, 0]


def configuration(blocks: int) -> Configuration:
    """Returns the arguments of a network with two heads."""
    return {
        "attention_head_dim": 16,
        "num_attention_heads": 2,
        "num_layers": blocks,
        "mlp_ratio": 2.0,
        "adaln_lora_dim": 8,
        "text_embed_dim": 32,
        "source_dim": LONG_WIDTH,
        "conditioner_dim": 32,
        "conditioner_layers": 2,
        "conditioner_heads": 2,
        "conditioner_mlp_ratio": 2.0,
    }


def language_model() -> Any:
    config = transformers.Qwen3Config(
        vocab_size=151936,
        hidden_size=LONG_WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
    )
    return transformers.Qwen3Model(config).to(torch.float32)


KINDS = {
    "anima": RandomTransformer(
        pipeline="AnimaModularPipeline",
        network=TRANSFORMER,
        control="",
        configuration=configuration,
        control_configuration=lambda network, blocks: network,
        scheduler=lambda: FlowMatchEulerDiscreteScheduler.from_config(dict(SCHEDULER)),
        text_encoders=((language_model, lambda: shipped(QWEN3), "Qwen2Tokenizer"),),
        latent=LATENT,
        absent=(),
        stock=Stock(arguments, unpacked=unpacked, load=Pipeline),
        coder=frame_vae,
        spread=0.15,  # so wide that a few words among 512 rows show in a picture
        published={
            "num_layers": 28,
            "num_attention_heads": 16,
            "attention_head_dim": 128,
            "mlp_ratio": 4.0,
            "adaln_lora_dim": 256,
        },
    )
}
