"""Reads Qwen-Image 2.1 transformers from single files, which may have fused layers. Never imports
torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.models.families.qwen_image_21.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes
from katz_graph.models.renaming import Renaming

MLP = "transformer_blocks.{}.img_mlp"
RENAMING = Renaming({f"{MLP}.gate_up": (f"{MLP}.gate_layer", f"{MLP}.proj")})


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer. Raises KeyError with the name of a missing
    tensor.
    """
    width, channels = shapes["img_in.weight"]
    (head,) = shapes["transformer_blocks.0.attn.norm_q.weight"]
    return {
        "_class_name": TRANSFORMER,
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0],
        "num_layers": how_many(shapes, "transformer_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "context_in_dim": shapes["txt_in.in_layer.weight"][1],
        "mlp_ratio": shapes["transformer_blocks.0.img_mlp.out.weight"][1] // width,
        "axes_dims_rope": rotary_axes(head),
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    return RENAMING.converted(tensors, blocks=0)  # all blocks are alike
