"""Reads Qwen-Image transformers from single files, whose tensors have diffusers' names. Never
imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.models.families.qwen_image.architecture import TRANSFORMER
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes

STILL_REFERENCES = "__index_timestep_zero__"
"""Empty tensor of models that were trained with references of timestep 0."""
LAYERED = "time_text_embed.addition_t_embedding.weight"
GUIDANCE = "time_text_embed.guidance_embedder."
SIDE = 2  # cells per patch


def transformer_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a transformer. Raises KeyError with the name of a missing
    tensor, InputError for a marker that is no empty tensor.
    """
    width, channels = shapes["img_in.weight"]
    (head,) = shapes["transformer_blocks.0.attn.norm_q.weight"]
    if 0 not in (marker := shapes.get(STILL_REFERENCES, (0,))):
        raise InputError(
            f"a Qwen-Image transformer whose {STILL_REFERENCES} has the shape {list(marker)}, "
            "expected an empty tensor, which marks a model"
        )
    return {
        "_class_name": TRANSFORMER,
        "patch_size": SIDE,
        "in_channels": channels,
        "out_channels": shapes["proj_out.weight"][0] // SIDE**2,
        "num_layers": how_many(shapes, "transformer_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "guidance_embeds": any(name.startswith(GUIDANCE) for name in shapes),
        "axes_dims_rope": rotary_axes(head),
        "zero_cond_t": STILL_REFERENCES in shapes,
        "use_additional_t_cond": LAYERED in shapes,
        "use_layer3d_rope": LAYERED in shapes,
    }


def converted(tensors: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the tensors without the marker."""
    return {name: tensor for name, tensor in tensors.items() if name != STILL_REFERENCES}
