"""Reads FLUX.2 transformers in the original layout. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.flux2.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many
from katz_graph.models.renaming import Renaming

AXES = 4  # of rotary positions: picture, row, column, place in the text
DOUBLE: Mapping[str, tuple[str, ...]] = {
    "img_attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
    "txt_attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
    "img_attn.norm.query_norm": ("attn.norm_q",),
    "img_attn.norm.key_norm": ("attn.norm_k",),
    "txt_attn.norm.query_norm": ("attn.norm_added_q",),
    "txt_attn.norm.key_norm": ("attn.norm_added_k",),
    "img_attn.proj": ("attn.to_out.0",),
    "txt_attn.proj": ("attn.to_add_out",),
    "img_mlp.0": ("ff.linear_in",),
    "img_mlp.2": ("ff.linear_out",),
    "txt_mlp.0": ("ff_context.linear_in",),
    "txt_mlp.2": ("ff_context.linear_out",),
}
SINGLE: Mapping[str, tuple[str, ...]] = {
    "linear1": ("attn.to_qkv_mlp_proj",),
    "linear2": ("attn.to_out",),
    "norm.query_norm": ("attn.norm_q",),
    "norm.key_norm": ("attn.norm_k",),
}
MODULATIONS = (
    "double_stream_modulation_img",
    "double_stream_modulation_txt",
    "single_stream_modulation",
)
RENAMING = Renaming(
    {
        "img_in": ("x_embedder",),
        "txt_in": ("context_embedder",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
        "final_layer.linear": ("proj_out",),
    }
    | {f"{name}.lin": (f"{name}.linear",) for name in MODULATIONS}
    | {
        f"{original}.{side}_layer": (f"time_guidance_embed.{name}_embedder.linear_{number}",)
        for original, name in (("time_in", "timestep"), ("guidance_in", "guidance"))
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
    swapped=frozenset({"final_layer.adaLN_modulation.1"}),
)


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor, ValueError for an indivisible head width.
    """
    width, channels = shapes["img_in.weight"]
    (head,) = shapes["double_blocks.0.img_attn.norm.query_norm.scale"]
    if head % (2 * AXES):
        raise ValueError(head)
    return {
        "_class_name": TRANSFORMER,
        "patch_size": 1,
        "in_channels": channels,
        "out_channels": shapes["final_layer.linear.weight"][0],
        "num_layers": how_many(shapes, "double_blocks.{}."),
        "num_single_layers": how_many(shapes, "single_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "timestep_guidance_channels": shapes["time_in.in_layer.weight"][1],
        "mlp_ratio": shapes["double_blocks.0.img_mlp.2.weight"][1] / width,
        "axes_dims_rope": [head // AXES] * AXES,
        "guidance_embeds": "guidance_in.in_layer.weight" in shapes,
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    return RENAMING.converted(tensors, values["num_layers"])
