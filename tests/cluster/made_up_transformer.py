"""Declares in one file a transformer family unknown to the engine: diffusers' Sana with its
ControlNet, and the stages that compute it.
"""

from __future__ import annotations

from typing import Any

import torch

from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Component, ControlNetRecipe, ModelRecipe
from katz_graph.models.configuration import config_value
from katz_graph.models.families.shared.controls import check_sizes, numbered_blocks
from katz_graph.models.families.shared.declarations import lora_names, transformer
from katz_graph.models.families.shared.transformer_region import draw_control
from katz_graph.models.families.shared.transformer_stack import unpatched
from katz_graph.models.family import Architecture, Controls, ModelFamily, Training


def architecture(part: Component) -> Architecture:
    channels = config_value(part, "in_channels", int)
    return Architecture(channels, channels, config_value(part, "caption_channels", int), None)


def reads(control: ControlNetRecipe, model: ModelRecipe) -> tuple[int | None, ...]:
    """Returns, by position, the residual read: i after block i + 1."""
    blocks, given = (
        config_value(part, "num_layers", int) for part in (model.network, control.control_net)
    )
    return tuple(at - 2 if 0 <= at - 2 < given else None for at in range(blocks + 1))


FAMILY = ModelFamily(
    title="Made Up",
    short="MU",
    network=transformer(
        class_name="SanaTransformer2DModel",
        architecture=architecture,
        complete=lambda entry, *_: entry,
        stack=__name__,
    ),
    files=None,
    training=Training(
        latent=lambda _: LatentSpace(4, 8, 0.5),
        noise=lambda _: {"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0},
    ),
    controls=Controls(
        ("SanaControlNetModel",),
        (),  # loads only from folders
        lambda control, model: check_sizes(control.control_net, model.network, architecture),
        draw_control,
        reads,
        numbered_blocks,
    ),
    lora=lora_names(roots=("transformer_blocks",)),
)


def side(module: Any) -> Any:
    return module.config.patch_size


def blocks(module: Any) -> Any:
    return list(module.transformer_blocks)


def parts(module: Any, name: str) -> Any:
    context = [module.caption_projection, module.caption_norm]
    embed = [module.patch_embed, module.time_embed]
    return {"context": context, "embed": embed}.get(name) or [module.proj_out]


def context(module: Any, text: Any, kinds: Any = ()) -> Any:
    return module.caption_norm(module.caption_projection(text.hidden))


def vectors(module: Any, text: Any) -> Any:
    return ()


def fixed(module: Any, rows: int, columns: int, tokens: int, references: Any = None) -> Any:
    return (torch.empty(1, rows, columns, device=module.device),)  # only its shape is used


def embedding(module: Any, timestep: Any, vectors: Any) -> Any:
    six_and_one = module.time_embed(timestep.float(), None, len(timestep), module.dtype)
    return torch.cat(six_and_one, dim=1)


def embed(module: Any, x: Any, context: Any, embedding: Any, fixed: Any) -> Any:
    return module.patch_embed(x), context


def block(module: Any, at: int, hidden: Any, text: Any, embedding: Any, fixed: Any) -> Any:
    time, grid = embedding[:, : -hidden.shape[-1]], fixed[0].shape[1:]
    return module.transformer_blocks[at](hidden, None, text, None, time, *grid), text


def head(module: Any, hidden: Any, embedding: Any, rows: int, columns: int) -> Any:
    time = embedding[:, -hidden.shape[-1] :]
    tokens = module.proj_out(module.norm_out(hidden, time, module.scale_shift_table))
    return unpatched(tokens, rows, columns, side(module))


def hint(module: Any, reference: Any) -> Any:
    return module.input_block(module.patch_embed(reference))


def residual(module: Any, at: int, hidden: Any) -> Any:
    return module.controlnet_blocks[at](hidden)


def unshifted(values: Any) -> bool:
    return False
