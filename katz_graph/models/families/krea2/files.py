"""Reads Krea 2 transformers in the original layout. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.krea2.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes
from katz_graph.models.renaming import Renaming

MODULATION = "scale_shift_table"  # [6, D] in a module, flat in a file
VECTORS = 6
LAYERS: Mapping[str, str] = {
    "attn.wq": "attn.to_q",
    "attn.wk": "attn.to_k",
    "attn.wv": "attn.to_v",
    "attn.wo": "attn.to_out.0",
    "attn.gate": "attn.to_gate",
    "attn.qknorm.qnorm": "attn.norm_q",
    "attn.qknorm.knorm": "attn.norm_k",
    "mlp.gate": "ff.gate",
    "mlp.up": "ff.up",
    "mlp.down": "ff.down",
    "prenorm": "norm1",
    "postnorm": "norm2",
}
CHAINS = {
    "blocks": "transformer_blocks",
    "txtfusion.layerwise_blocks": "text_fusion.layerwise_blocks",
    "txtfusion.refiner_blocks": "text_fusion.refiner_blocks",
}
RENAMING = Renaming(
    {
        "first": ("img_in",),
        "tmlp.0": ("time_embed.linear_1",),
        "tmlp.2": ("time_embed.linear_2",),
        "tproj.1": ("time_mod_proj",),
        "txtfusion.projector": ("text_fusion.projector",),
        "txtmlp.0": ("txt_in.norm",),
        "txtmlp.1": ("txt_in.linear_1",),
        "txtmlp.3": ("txt_in.linear_2",),
        "last.linear": ("final_layer.linear",),
        "last.norm": ("final_layer.norm",),
    }
    | {
        f"{chain}.{{}}.{layer}": (f"{ours}.{{}}.{name}",)
        for chain, ours in CHAINS.items()
        for layer, name in LAYERS.items()
    },
    tensors={
        "last.modulation.lin": f"final_layer.{MODULATION}",
        "blocks.{}.mod.lin": f"transformer_blocks.{{}}.{MODULATION}",
    },
)


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer in the original layout. Raises KeyError with the
    name of a missing tensor.
    """
    width, channels = shapes["first.weight"]
    states = shapes["txtfusion.projector.weight"][1]
    (head,) = shapes["blocks.0.attn.qknorm.qnorm.scale"]
    (text,) = shapes["txtmlp.0.scale"]
    fusion = "txtfusion.layerwise_blocks.0"
    (text_head,) = shapes[f"{fusion}.attn.qknorm.qnorm.scale"]
    return {
        "_class_name": TRANSFORMER,
        "in_channels": channels,
        "num_layers": how_many(shapes, "blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "num_key_value_heads": head_count(shapes["blocks.0.attn.wk.weight"][0], head),
        "intermediate_size": shapes["blocks.0.mlp.up.weight"][0],
        "timestep_embed_dim": shapes["tmlp.0.weight"][1],
        "text_hidden_dim": text,
        "num_text_layers": states,
        "text_num_attention_heads": head_count(text, text_head),
        "text_num_key_value_heads": head_count(shapes[f"{fusion}.attn.wk.weight"][0], text_head),
        "text_intermediate_size": shapes[f"{fusion}.mlp.up.weight"][0],
        "num_layerwise_text_blocks": how_many(shapes, "txtfusion.layerwise_blocks.{}."),
        "num_refiner_text_blocks": how_many(shapes, "txtfusion.refiner_blocks.{}."),
        "axes_dims_rope": rotary_axes(head, 4),
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    renamed = RENAMING.converted(tensors, blocks=0)  # all blocks are alike
    return {
        name: one.reshape(VECTORS, -1) if name.endswith(MODULATION) and one.ndim == 1 else one
        for name, one in renamed.items()
    }
