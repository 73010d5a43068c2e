"""Maps residuals of Qwen-Image ControlNets to blocks, checks that a ControlNet fits, and reads its
files. Never imports torch.
"""

from __future__ import annotations

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.qwen_image.architecture import (
    CONTROLNET,
    transformer_architecture,
)
from katz_graph.models.families.shared.controls import check_sizes
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes

HINT = "controlnet_x_embedder.weight"
LAYERS = 60  # diffusers' default


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals: each of n residuals is added after each of ceil(N / n) consecutive
    blocks, the last block included.
    """
    count, given = _layers(model.network), _layers(control.control_net)
    return None, *(number // -(-count // given) for number in range(count))


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError if a ControlNet's sizes differ from the transformer's, or if the
    transformer makes layers, which ControlNets do not see.
    """
    part, network = control.control_net, model.network
    check_sizes(part, network, transformer_architecture)
    ours, theirs = _layers(part), _layers(network)
    if not 0 < ours <= theirs:
        raise InputError(
            f"{part.folder}: the ControlNet has {ours} blocks, the transformer in "
            f"{network.folder} has {theirs}"
        )
    if config(network).get("use_layer3d_rope"):
        raise InputError(
            f"{part.folder}: the ControlNet reads one picture, the transformer in "
            f"{network.folder} makes layers: use a model without layers"
        )


def reads_mask(part: Component) -> bool:
    """Returns whether a ControlNet reads the mask of the visible part behind its latent."""
    return bool(config(part).get("extra_condition_channels"))


def controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a ControlNet. Raises KeyError with the name of a missing tensor,
    InputError for inputs of other channels.
    """
    width, channels = shapes["img_in.weight"]
    (head,) = shapes["transformer_blocks.0.attn.norm_q.weight"]
    more, mask = shapes[HINT][1] - channels, channels // 16
    if more not in (0, mask):
        raise InputError(
            f"a ControlNet for Qwen-Image that reads {shapes[HINT][1]} channels, expected "
            f"{channels}, or {channels + mask} with a mask"
        )
    return {
        "_class_name": CONTROLNET,
        "patch_size": 2,
        "in_channels": channels,
        "out_channels": channels // 4,
        "num_layers": how_many(shapes, "transformer_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": shapes["txt_in.weight"][1],
        "axes_dims_rope": rotary_axes(head),
        "extra_condition_channels": more,
    }


def _layers(part: Component) -> int:
    count: int = config_value(part, "num_layers", int, LAYERS)
    return count
