"""Maps the original layout of HunyuanDiT transformers and ControlNets to diffusers' names in one
table. Splits fused rows. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.hunyuan_dit.architecture import CONTROLNET, TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many
from katz_graph.models.renaming import Renaming

POOLER = "pooler.positional_embedding"
FUSED = "blocks.0.attn1.Wqkv.weight"  # three tensors in diffusers' layout
RENAMING = Renaming(
    {
        "x_embedder.proj": ("pos_embed.proj",),
        "t_embedder.mlp.0": ("time_extra_emb.timestep_embedder.linear_1",),
        "t_embedder.mlp.2": ("time_extra_emb.timestep_embedder.linear_2",),
        "extra_embedder.0": ("time_extra_emb.extra_embedder.linear_1",),
        "extra_embedder.2": ("time_extra_emb.extra_embedder.linear_2",),
        "style_embedder": ("time_extra_emb.style_embedder",),
        "mlp_t5.0": ("text_embedder.linear_1",),
        "mlp_t5.2": ("text_embedder.linear_2",),
        "final_layer.adaLN_modulation.1": ("norm_out.linear",),
        "final_layer.linear": ("proj_out",),
        "before_proj": ("input_block",),  # ControlNets
        "after_proj_list.{}": ("controlnet_blocks.{}",),
    }
    | {f"pooler.{one}_proj": (f"time_extra_emb.pooler.{one}_proj",) for one in "qkvc"}
    | {
        f"blocks.{{}}.{layer}": tuple(f"blocks.{{}}.{one}" for one in names)
        for layer, names in {
            "attn1.Wqkv": ("attn1.to_q", "attn1.to_k", "attn1.to_v"),
            "attn1.q_norm": ("attn1.norm_q",),
            "attn1.k_norm": ("attn1.norm_k",),
            "attn1.out_proj": ("attn1.to_out.0",),
            "attn2.q_proj": ("attn2.to_q",),
            "attn2.kv_proj": ("attn2.to_k", "attn2.to_v"),
            "attn2.q_norm": ("attn2.norm_q",),
            "attn2.k_norm": ("attn2.norm_k",),
            "attn2.out_proj": ("attn2.to_out.0",),
            "default_modulation.1": ("norm1.linear",),
            "norm1": ("norm1.norm",),
            "norm2": ("norm3",),  # diffusers numbers norms in order of use
            "norm3": ("norm2",),
            "mlp.fc1": ("ff.net.0.proj",),
            "mlp.fc2": ("ff.net.2",),
        }.items()
    },
    swapped=frozenset({"final_layer.adaLN_modulation.1"}),
    tensors={POOLER: f"time_extra_emb.{POOLER}"},
)


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor.
    """
    values = _configuration(shapes)
    outputs = _shape(shapes, "final_layer.linear.weight")[0] // values["patch_size"] ** 2
    return values | {
        "_class_name": TRANSFORMER,
        "num_layers": how_many(shapes, "blocks.{}."),
        "learn_sigma": outputs == 2 * values["in_channels"],
    }


def controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a ControlNet in either layout. Raises KeyError with the name of
    a missing tensor.
    """
    blocks = how_many(shapes, "blocks.{}.")
    return _configuration(shapes) | {
        "_class_name": CONTROLNET,
        "transformer_num_layers": 2 * (blocks + 1),
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. Files in diffusers' layout stay unchanged,
    because norm2 and norm3 exist in both layouts. `values`: the module's configuration.
    """
    return RENAMING.converted(tensors, 0) if FUSED in tensors else tensors


def _configuration(shapes: Shapes) -> Configuration:
    """Derives the values that transformers and ControlNets share, in either layout."""
    width, channels, patch, _ = _shape(shapes, "x_embedder.proj.weight")
    (head,) = _shape(shapes, "blocks.0.attn1.q_norm.weight")
    rows, text = shapes["text_embedding_padding"]
    long = _shape(shapes, POOLER)[0] - 1
    return {
        "patch_size": patch,
        "in_channels": channels,
        "hidden_size": width,
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "mlp_ratio": _ratio(_shape(shapes, "blocks.0.mlp.fc1.weight")[0], width),
        "cross_attention_dim": text,
        "cross_attention_dim_t5": _shape(shapes, "mlp_t5.0.weight")[1],
        "pooled_projection_dim": _shape(shapes, "pooler.c_proj.weight")[0],
        "text_len": rows - long,
        "text_len_t5": long,
        "use_style_cond_and_image_meta_size": any(
            name.endswith("style_embedder.weight") for name in shapes
        ),
    }


def _shape(shapes: Shapes, name: str) -> tuple[int, ...]:
    """Returns a tensor's shape by its original name, in either layout. Raises KeyError if it is
    missing.
    """
    if name in shapes:
        return shapes[name]
    layer, _, parameter = name.rpartition(".")
    found = RENAMING.rows(layer, 0)
    return shapes[f"{found[0].layer}.{parameter}" if found else RENAMING.tensors[name]]


def _ratio(rows: int, width: int) -> float:
    """Returns a factor whose product with the width truncates to `rows`, as in diffusers."""
    exact = rows / width
    return exact if int(width * exact) == rows else (rows + 0.5) / width
