"""Renames tensors of UNets and ControlNets in the original layout with diffusers' converters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diffusers.loaders.single_file_utils import (
    DIFFUSERS_TO_LDM_MAPPING,
    convert_controlnet_checkpoint,
    convert_ldm_unet_checkpoint,
)
from torch import Tensor

from katz_graph.models.families.unet.configurations import is_original

PREFIX = "model.diffusion_model."  # required by diffusers' converter


def converted(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors under diffusers' names. `values`: the module's configuration."""
    if not is_original(tensors):
        return tensors
    match values["_class_name"]:
        case "UNet2DConditionModel":
            return dict(
                convert_ldm_unet_checkpoint(
                    {PREFIX + name: tensor for name, tensor in tensors.items()}, values
                )
            )
        case "ControlNetModel":
            added = DIFFUSERS_TO_LDM_MAPPING["controlnet"]["addition_embed_type"]
            sizes = {ours: tensors[theirs] for ours, theirs in added.items() if theirs in tensors}
            renamed = convert_controlnet_checkpoint(tensors, values) | sizes
            return {name: tensor for name, tensor in renamed.items() if tensor is not None}
        case _:
            return tensors
