"""Maps residuals of Qwen-Image ControlNets to blocks, checks that a ControlNet fits, and reads its
files. Never imports torch.
"""

from __future__ import annotations

import math

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.qwen_image.architecture import (
    CONTROLNET,
    FUN_CONTROLNET,
    transformer_architecture,
)
from katz_graph.models.families.shared.controls import check_sizes
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes

HINT = "controlnet_x_embedder.weight"
LAYERS = 60  # diffusers' default
EVERY = 12  # published Fun ControlNets act on every twelfth block, starting with the first


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals: each of n residuals is added after each of ceil(N / n) consecutive
    blocks, the last block included; those of Fun ControlNets after their places.
    """
    if reads_tokens(control.control_net):
        found, every = _places(control.control_net), range(_layers(model.network))
        return None, *(found.index(one) if one in found else None for one in every)
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
    beyond = [one for one in _places(part) if one >= theirs] if reads_tokens(part) else []
    if beyond:
        raise InputError(
            f"{part.folder}: the ControlNet acts after block {beyond[-1]}, the transformer in "
            f"{network.folder} has 0 to {theirs - 1}"
        )
    if config(network).get("use_layer3d_rope"):
        raise InputError(
            f"{part.folder}: the ControlNet reads one picture, the transformer in "
            f"{network.folder} makes layers: use a model without layers"
        )


def reads_tokens(part: Component) -> bool:
    """Returns whether a ControlNet begins with the model's tokens and text, as Fun's do."""
    return bool(config(part).get("_class_name") == FUN_CONTROLNET)


def strength(part: Component, value: float) -> float:
    """Returns the factor of residuals: of Fun ControlNets the root, as in ComfyUI."""
    return math.sqrt(max(value, 0.0)) if reads_tokens(part) else value


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


def fun_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a Fun ControlNet. Raises KeyError with the name of a missing
    tensor, InputError for those of other versions.
    """
    width, features = shapes["control_img_in.weight"]
    if "control_blocks.0.attn.add_q_proj.weight" not in shapes:
        raise InputError(
            "a Fun ControlNet whose blocks are not Qwen-Image 1.x's: those for Qwen-Image 2.1 are "
            "not supported"
        )
    (head,) = shapes["control_blocks.0.attn.norm_q.weight"]
    count = how_many(shapes, "control_blocks.{}.")
    return {
        "_class_name": FUN_CONTROLNET,
        "patch_size": 2,
        "control_in_features": features,
        "num_layers": count,
        "control_layers_places": [EVERY * number for number in range(count)],
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "axes_dims_rope": rotary_axes(head),
    }


def refused_patch(shapes: Shapes, _: str) -> Configuration:
    """Raises InputError: DiffSynth's patches read the model's tokens after each block."""
    raise InputError(
        "a DiffSynth patch for Qwen-Image, which is not supported: use a ControlNet by InstantX "
        "or the union control LoRA"
    )


def _places(part: Component) -> list[int]:
    """Returns the model's blocks that a Fun ControlNet's residuals follow."""
    found: list[int] = config_value(part, "control_layers_places", list)
    return found


def _layers(part: Component) -> int:
    count: int = config_value(part, "num_layers", int, LAYERS)
    return count
