"""Maps residuals of FLUX.1 ControlNets to blocks, checks that a ControlNet fits, and reads its
files in diffusers' and XLabs' layouts. Never imports torch.
"""

from __future__ import annotations

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config, config_value
from katz_graph.models.families.flux.architecture import CONTROLNET, transformer_architecture
from katz_graph.models.families.flux.files import (
    ORIGINAL_HINT,
    blocks_configuration,
)
from katz_graph.models.families.shared.controls import check_sizes
from katz_graph.models.family import Configuration
from katz_graph.models.loading.configurations import Shapes, head_count, how_many, rotary_axes

CHAINS = "num_layers", "num_single_layers"


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Maps blocks to residuals. In a chain of N blocks, each of n residuals is added after each of
    ceil(N / n) consecutive blocks. Residuals of ControlNets that read pixels repeat cyclically.
    """
    again = config(control.control_net).get("conditioning_embedding_channels") is not None
    found: list[int | None] = [None]
    first = 0
    for blocks, given in zip(_blocks(model.network), _blocks(control.control_net), strict=True):
        each = -(-blocks // given) if given else 1
        found += [
            (first + (number % given if again else number // each)) if given else None
            for number in range(blocks)
        ]
        first += given
    return tuple(found)


def check_controlnet(control: ControlNetRecipe, model: ModelRecipe) -> None:
    """Raises InputError if a ControlNet's sizes differ from the transformer's."""
    part = control.control_net
    check_sizes(part, model.network, transformer_architecture)
    ours, theirs = _blocks(part), _blocks(model.network)
    if not any(ours) or any(one > other for one, other in zip(ours, theirs, strict=True)):
        raise InputError(
            f"{part.folder}: the ControlNet has {ours[0]} double and {ours[1]} single blocks, the "
            f"transformer in {model.network.folder} {theirs[0]} and {theirs[1]}"
        )


def controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives a ControlNet's configuration. Raises KeyError with the name of a missing tensor."""
    width, channels = shapes["x_embedder.weight"]
    (head,) = shapes["transformer_blocks.0.attn.norm_q.weight"]
    kinds = shapes.get("controlnet_mode_embedder.weight")
    pixels = shapes.get("input_hint_block.conv_in.weight")
    return {
        "_class_name": CONTROLNET,
        "patch_size": 1 if pixels is None else 2,
        "in_channels": channels,
        "num_layers": how_many(shapes, "transformer_blocks.{}."),
        "num_single_layers": how_many(shapes, "single_transformer_blocks.{}."),
        "attention_head_dim": head,
        "num_attention_heads": head_count(width, head),
        "joint_attention_dim": shapes["context_embedder.weight"][1],
        "pooled_projection_dim": shapes["time_text_embed.text_embedder.linear_1.weight"][1],
        "guidance_embeds": "time_text_embed.guidance_embedder.linear_1.weight" in shapes,
        "axes_dims_rope": rotary_axes(head),
        "num_mode": None if kinds is None else kinds[0],
        "conditioning_embedding_channels": None
        if pixels is None
        else shapes["input_hint_block.conv_out.weight"][0],
    }


def original_controlnet_configuration(shapes: Shapes, _: str) -> Configuration:
    """Derives the configuration of a ControlNet in XLabs' layout, which reads the pixels of its
    reference. Raises KeyError with the name of a missing tensor.
    """
    side = 2
    return {
        **blocks_configuration(shapes),
        "_class_name": CONTROLNET,
        "patch_size": side,
        "conditioning_embedding_channels": shapes[ORIGINAL_HINT][1] // side**2,
    }


def _blocks(part: Component) -> tuple[int, int]:
    double, single = (config_value(part, name, int, 0) for name in CHAINS)
    return double, single
