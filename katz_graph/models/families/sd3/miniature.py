"""Describes the miniature SD3 transformer, which predicts velocities."""

from __future__ import annotations

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    SD3ControlNetModel,
    SD3Transformer2DModel,
    StableDiffusion3ControlNetPipeline,
    StableDiffusion3Pipeline,
)
from torch import nn

from katz_graph.models.families.sd3.architecture import LATENT
from katz_graph.models.families.sd3.family import FAMILY
from katz_graph.models.families.sd3.files import RENAMING
from katz_graph.models.families.shared.miniature import Miniature

PATCH, MAX_SIDE_CELLS = 2, 32  # cells: side of a patch, longest side of a picture
WIDTH, HEADS, BLOCKS, CONTROL_BLOCKS = 144, 3, 6, 3
LORA_LAYERS = (
    "x_block.attn.qkv",
    "context_block.attn.qkv",
    "x_block.attn.proj",
    "x_block.mlp.fc1",
    "x_block.mlp.fc2",
    "context_block.attn.proj",
    "context_block.mlp.fc1",
    "context_block.mlp.fc2",
)


def network(text_width: int) -> SD3Transformer2DModel:
    """Builds a transformer with random weights and zero modulations, so that each block starts as
    the identity (AdaLN-zero, Peebles and Xie 2023).
    """
    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=PATCH,
        in_channels=LATENT.channels,
        out_channels=LATENT.channels,
        num_layers=BLOCKS,
        attention_head_dim=WIDTH // HEADS,
        num_attention_heads=HEADS,
        joint_attention_dim=2 * text_width,
        caption_projection_dim=WIDTH,
        pooled_projection_dim=2 * text_width,
        pos_embed_max_size=MAX_SIDE_CELLS // PATCH,
        qk_norm="rms_norm",
    )
    for module in model.transformer_blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            if name.endswith(("norm1.linear", "norm1_context.linear", "norm_out.linear")):
                nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    nn.init.zeros_(model.proj_out.weight)
    return model


def control(transformer: SD3Transformer2DModel) -> SD3ControlNetModel:
    """Builds a ControlNet from a copy of the transformer's first blocks."""
    model = SD3ControlNetModel.from_transformer(transformer, CONTROL_BLOCKS, 0)
    # the default flag would zero the pooled text and leave the hint unshifted
    model.register_to_config(force_zeros_for_pooled_projection=False)
    return model


MINIATURE = Miniature(
    learns="flow",
    family=FAMILY,
    network=network,
    control=control,
    scheduler=lambda: FlowMatchEulerDiscreteScheduler(shift=3.0),
    pipeline=StableDiffusion3Pipeline,
    control_pipeline=StableDiffusion3ControlNetPipeline,
    space=LATENT,
    lora_layers={
        name: RENAMING.layers[name]
        for name in (f"joint_blocks.{{}}.{layer}" for layer in LORA_LAYERS)
    },
)
