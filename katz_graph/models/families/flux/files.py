"""Reads FLUX.1 transformers and XLabs' ControlNets in the original layout. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from katz_graph.models.families.flux.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes
from katz_graph.models.renaming import Renaming

DOUBLE: Mapping[str, tuple[str, ...]] = {
    "img_mod.lin": ("norm1.linear",),
    "txt_mod.lin": ("norm1_context.linear",),
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "img_attn.norm.query_norm": ("attn.norm_q",),
    "img_attn.norm.key_norm": ("attn.norm_k",),
    "txt_attn.norm.query_norm": ("attn.norm_added_q",),
    "txt_attn.norm.key_norm": ("attn.norm_added_k",),
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
    "img_mlp.0": ("ff.net.0.proj",),
    "img_mlp.2": ("ff.net.2",),
    "txt_mlp.0": ("ff_context.net.0.proj",),
    "txt_mlp.2": ("ff_context.net.2",),
}
SINGLE: Mapping[str, tuple[str, ...]] = {
    "modulation.lin": ("norm.linear",),
    "linear1": ("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"),
    "linear2": ("proj_out",),
    "norm.query_norm": ("attn.norm_q",),
    "norm.key_norm": ("attn.norm_k",),
}
EMBEDDERS = {"time_in": "timestep", "vector_in": "text", "guidance_in": "guidance"}
ORIGINAL_HINT = "pos_embed_input.weight"
SHARED_MODULATION = "double_stream_modulation_img.lin.weight"  # of FLUX.2
CONVOLUTIONS = ("conv_in", *(f"blocks.{number}" for number in range(6)), "conv_out")
"""diffusers' names of the convolutions over a reference's pixels. In the original code, activations
follow all but the last.
"""
RENAMING = Renaming(
    {
        "img_in": ("x_embedder",),
        "txt_in": ("context_embedder",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
        "final_layer.linear": ("proj_out",),
    }
    | {
        "pos_embed_input": ("controlnet_x_embedder",),
    }
    | {
        f"input_hint_block.{2 * place}": (f"input_hint_block.{layer}",)
        for place, layer in enumerate(CONVOLUTIONS)
    }
    | {
        f"{original}.{side}_layer": (f"time_text_embed.{name}_embedder.linear_{number}",)
        for original, name in EMBEDDERS.items()
        for number, side in enumerate(("in", "out"), start=1)
    }
    | {
        f"{original}.{{}}.{layer}": tuple(f"{blocks}.{{}}.{one}" for one in names)
        for original, blocks, table in (
            ("double_blocks", "transformer_blocks", DOUBLE),
            ("single_blocks", "single_transformer_blocks", SINGLE),
        )
        for layer, names in table.items()
    },
    shares={"single_blocks.{}.linear1": (1, 1, 1, 4)},
    swapped=frozenset({"final_layer.adaLN_modulation.1"}),
)
PROCESSORS: Mapping[str, tuple[str, ...]] = {
    f"double_blocks.{{}}.{name}": RENAMING.layers[f"double_blocks.{{}}.{layer}"]
    for name, layer in {
        "qkv_lora1": "img_attn.qkv",
        "qkv_lora2": "txt_attn.qkv",
        "proj_lora1": "img_attn.proj",
        "proj_lora2": "txt_attn.proj",
    }.items()
} | {
    "single_blocks.{}.qkv_lora": RENAMING.layers["single_blocks.{}.linear1"][:3],
    "single_blocks.{}.proj_lora": RENAMING.layers["single_blocks.{}.linear2"],
}
"""Layer names of XLabs' trainer, which attaches LoRAs to its attention processors."""
FURTHER: Mapping[str, tuple[str, ...]] = {
    "img_in.proj": RENAMING.layers["img_in"],  # OneTrainer's OMI name
    # ComfyUI's name for layers of XLabs and USO
    "single_blocks.{}.linear1_qkv": RENAMING.layers["single_blocks.{}.linear1"][:3],
}
OF_LORAS = replace(RENAMING, layers={**RENAMING.layers, **PROCESSORS, **FURTHER})


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor.
    """
    return {
        **blocks_configuration(shapes),
        "_class_name": TRANSFORMER,
        "patch_size": 1,
        "out_channels": shapes["final_layer.linear.weight"][0],
    }


def blocks_configuration(shapes: Shapes) -> Configuration:
    """Derives the values that transformers and ControlNets in the original layout share."""
    width, channels = shapes["img_in.weight"]
    (head,) = shapes["double_blocks.0.img_attn.norm.query_norm.scale"]
    return {
        "in_channels": channels,
        "num_layers": how_many(shapes, "double_blocks.{}."),
        "num_single_layers": how_many(shapes, "single_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "pooled_projection_dim": shapes["vector_in.in_layer.weight"][1],
        "guidance_embeds": "guidance_in.in_layer.weight" in shapes,
        "axes_dims_rope": rotary_axes(head),
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    return RENAMING.converted(tensors, values["num_layers"])
