"""Maps residuals of Stable Diffusion 3 ControlNets to blocks, checks that a ControlNet fits, and
reads its files in diffusers' and Stability's layouts. Never imports torch.
"""

from __future__ import annotations

from math import isqrt

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.sd3.architecture import (
    CONTROLNET,
    reads_tokens,
    transformer_architecture,
)
from katz_graph.models.families.shared.controls import check_sizes
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import HEAD_WIDTH, Shapes, head_count, how_many


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals: residual int(i / (N / n)) is added after block i of N, except after
    the last block.
    """
    blocks = config_value(model.network, "num_layers", int)
    given = config_value(control.control_net, "num_layers", int)
    return None, *(int(number / (blocks / given)) for number in range(blocks - 1)), None


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError if a ControlNet's sizes differ from the transformer's, or if it embeds
    tokens without reading text, or the reverse.
    """
    part = control.control_net
    if bool(config(part).get("use_pos_embed", True)) == reads_tokens(part):
        raise InputError(
            f"{part.folder}: the ControlNet has its own tokens or reads the text, expected both "
            "or neither"
        )
    if config(part).get("extra_conditioning_channels"):
        raise InputError(f"{part.folder}: a ControlNet that also reads a mask is not supported")
    check_sizes(part, model.network, transformer_architecture)
    sides = [config_value(one, "patch_size", int, 2) for one in (part, model.network)]
    if sides[0] != sides[1]:
        raise InputError(
            f"{part.folder}: the ControlNet has patches of {sides[0]} cells, the transformer in "
            f"{model.network.folder} of {sides[1]}"
        )
    blocks = [config_value(one, "num_layers", int) for one in (part, model.network)]
    if not 0 < blocks[0] <= blocks[1]:
        raise InputError(
            f"{part.folder}: the ControlNet has {blocks[0]} blocks, the transformer in "
            f"{model.network.folder} {blocks[1]}"
        )


def controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives a ControlNet's configuration. Raises KeyError with the name of a missing tensor."""
    width, text = shapes["context_embedder.weight"]
    patch = shapes["pos_embed.proj.weight"][-1]
    norm = shapes.get("transformer_blocks.0.attn.norm_q.weight")
    head = norm[0] if norm else HEAD_WIDTH
    channels = shapes["pos_embed.proj.weight"][1]
    return {
        "_class_name": CONTROLNET,
        "patch_size": patch,
        "in_channels": channels,
        "num_layers": how_many(shapes, "controlnet_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": text,
        "caption_projection_dim": width,
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "pos_embed_max_size": isqrt(shapes["pos_embed.pos_embed"][1]),
        "extra_conditioning_channels": shapes["pos_embed_input.proj.weight"][1] - channels,
        "qk_norm": "rms_norm" if norm else None,
        "force_zeros_for_pooled_projection": True,
    }


def original_controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a 3.5 large ControlNet in Stability's layout, which starts from
    the model's embedded tokens. Raises KeyError with the name of a missing tensor.
    """
    width, channels, patch = shapes["pos_embed_input.proj.weight"][:3]
    return {
        "_class_name": CONTROLNET,
        "patch_size": patch,
        "in_channels": channels,
        "num_layers": how_many(shapes, "controlnet_blocks.{}."),
        "attention_head_dim": HEAD_WIDTH,
        "num_attention_heads": head_count(width, HEAD_WIDTH),
        "joint_attention_dim": None,
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "pos_embed_type": None,
        "use_pos_embed": False,
        "force_zeros_for_pooled_projection": False,
    }
