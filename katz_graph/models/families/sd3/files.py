"""Maps the original layout of Stable Diffusion 3 transformers and ControlNets to diffusers' names
in one table. Splits fused rows and swaps shift and scale halves. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from katz_graph.models.families.sd3.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import HEAD_WIDTH, Shapes, head_count, how_many
from katz_graph.models.renaming import Renaming

CONTROL_TYPE = "control_type"  # a ControlNet's tensor with the number of its reference kind
ORIGINAL_CONTROL = "transformer_blocks.0.adaLN_modulation.1.weight"
RENAMING = Renaming(
    {
        "x_embedder.proj": ("pos_embed.proj",),
        "t_embedder.mlp.0": ("time_text_embed.timestep_embedder.linear_1",),
        "t_embedder.mlp.2": ("time_text_embed.timestep_embedder.linear_2",),
        "y_embedder.mlp.0": ("time_text_embed.text_embedder.linear_1",),
        "y_embedder.mlp.2": ("time_text_embed.text_embedder.linear_2",),
        "context_embedder": ("context_embedder",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
        "final_layer.linear": ("proj_out",),
    }
    | {
        f"joint_blocks.{{}}.{layer}": tuple(f"transformer_blocks.{{}}.{one}" for one in names)
        for layer, names in {
            "x_block.attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
            "x_block.attn.ln_q": ("attn.norm_q",),
            "x_block.attn.ln_k": ("attn.norm_k",),
            "x_block.attn.proj": ("attn.to_out.0",),
            "x_block.attn2.qkv": ("attn2.to_q", "attn2.to_k", "attn2.to_v"),
            "x_block.attn2.ln_q": ("attn2.norm_q",),
            "x_block.attn2.ln_k": ("attn2.norm_k",),
            "x_block.attn2.proj": ("attn2.to_out.0",),
            "x_block.adaLN_modulation.1": ("norm1.linear",),
            "x_block.mlp.fc1": ("ff.net.0.proj",),
            "x_block.mlp.fc2": ("ff.net.2",),
            "context_block.attn.qkv": ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"),
            "context_block.attn.ln_q": ("attn.norm_added_q",),
            "context_block.attn.ln_k": ("attn.norm_added_k",),
            "context_block.attn.proj": ("attn.to_add_out",),
            "context_block.adaLN_modulation.1": ("norm1_context.linear",),
            "context_block.mlp.fc1": ("ff_context.net.0.proj",),
            "context_block.mlp.fc2": ("ff_context.net.2",),
        }.items()
    }
    | {  # ControlNets
        f"transformer_blocks.{{}}.{layer}": tuple(f"transformer_blocks.{{}}.{one}" for one in names)
        for layer, names in {
            "attn.qkv": ("attn.to_q", "attn.to_k", "attn.to_v"),
            "attn.proj": ("attn.to_out.0",),
            "adaLN_modulation.1": ("norm1.linear",),
            "mlp.fc1": ("ff.net.0.proj",),
            "mlp.fc2": ("ff.net.2",),
        }.items()
    },
    swapped=frozenset({"final_layer.adaLN_modulation.1"}),
    # the last block does not update the text: the norm has one shift and one scale
    swapped_in_last=frozenset({"joint_blocks.{}.context_block.adaLN_modulation.1"}),
    tensors={"pos_embed": "pos_embed.pos_embed"},
)


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor.
    """
    width, text = shapes["context_embedder.weight"]
    patch = shapes["x_embedder.proj.weight"][-1]
    norm = shapes.get("joint_blocks.0.x_block.attn.ln_q.weight")
    head = norm[0] if norm else HEAD_WIDTH
    blocks = how_many(shapes, "joint_blocks.{}.")
    second = "joint_blocks.{}.x_block.attn2.qkv.weight"
    return {
        "_class_name": TRANSFORMER,
        "patch_size": patch,
        "in_channels": shapes["x_embedder.proj.weight"][1],
        "out_channels": shapes["final_layer.linear.weight"][0] // patch**2,
        "num_layers": blocks,
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": text,
        "caption_projection_dim": width,
        "pooled_projection_dim": shapes["y_embedder.mlp.0.weight"][1],
        "pos_embed_max_size": isqrt(shapes["pos_embed"][1]),
        "dual_attention_layers": [
            number for number in range(blocks) if second.format(number) in shapes
        ],
        "qk_norm": "rms_norm" if norm else None,
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    remaining = {name: tensor for name, tensor in tensors.items() if name != CONTROL_TYPE}
    return RENAMING.converted(remaining, values["num_layers"])
