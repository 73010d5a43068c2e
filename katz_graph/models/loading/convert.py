"""Builds a live module from a part of a single file: its tensors renamed to those of diffusers or
transformers with diffusers' own converters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import transformers
from diffusers.loaders.single_file_utils import (
    convert_ldm_vae_checkpoint,
    convert_open_clip_checkpoint,
)
from safetensors import safe_open
from torch import Tensor

from katz_graph.models.configuration import config
from katz_graph.models.family import family_of_class
from katz_graph.models.stages import named
from katz_graph.recipe import Component

# VAEs of diffusers before 0.17
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
MARKS = ("difference",)  # tensors that say something by being there
FORGOTTEN = re.compile(r"(^|\.)(position_ids|logit_scale)$")  # of no use to a text encoder


def build(model: Any, part: Component, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    """Returns the module, and which of its tensors are missing, unknown or of another shape, as
    `from_pretrained` reports it.

    Memory: the module once, in `dtype`, whatever the file's.
    """
    values = dict(config(part))
    with torch.device("meta"):
        text = model.__module__.startswith("transformers")
        module = model(transformers.CLIPTextConfig(**values)) if text else model.from_config(values)
    tensors = (
        _text(module, _tensors(part, dtype)) if text else _converted(_tensors(part, dtype), values)
    )
    wanted = {name: tuple(value.shape) for name, value in module.state_dict().items()}
    report = {
        "missing_keys": wanted.keys() - tensors.keys(),
        "unexpected_keys": tensors.keys() - wanted.keys(),
        "mismatched_keys": [
            (name, tuple(value.shape), wanted[name])
            for name, value in tensors.items()
            if wanted.get(name, value.shape) != tuple(value.shape)
        ],
    }
    if not any(report.values()):
        module.load_state_dict(tensors, assign=True)
        if text:  # a buffer that no file need hold
            getattr(module, "text_model", module).embeddings.position_ids = torch.arange(
                values["max_position_embeddings"]
            )[None]
    return module, report


def _tensors(part: Component, dtype: torch.dtype) -> dict[str, Tensor]:
    """Reads the part's tensors without its prefix."""
    (file,) = part.files
    with safe_open(file.path, framework="pt") as content:
        there = content.keys()
        names = [name for name in there if name.startswith(part.prefix) and name not in MARKS]
        return {
            name.removeprefix(part.prefix): content.get_tensor(name).to(dtype) for name in names
        }


def _converted(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    family = family_of_class(values["_class_name"])
    if family is not None:
        converted: dict[str, Tensor] = named(family.files.convert)(tensors, values)
        return converted
    if "encoder.down.0.block.0.conv1.weight" in tensors:
        return dict(convert_ldm_vae_checkpoint(tensors, values))
    return {_present_attention(name): tensor for name, tensor in tensors.items()}


def _text(module: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames tensors as the module names them, which may or may not have a level `text_model`."""
    projects = hasattr(module, "text_projection")
    if "positional_embedding" in tensors:
        tensors = convert_open_clip_checkpoint(module, tensors, prefix="")
    level = "text_model." if hasattr(module, "text_model") else ""
    renamed = {}
    for name, tensor in tensors.items():
        bare = name.removeprefix("text_model.")
        if bare == "text_projection.weight" and projects:
            renamed[bare] = tensor
        elif not bare.startswith("text_projection") and not FORGOTTEN.search(bare):
            renamed[level + bare] = tensor
    return renamed


def _present_attention(name: str) -> str:
    match = re.fullmatch(r"(.*\.attentions\.\d+)\.(query|key|value|proj_attn)\.(.*)", name)
    return f"{match[1]}.{OLD_ATTENTION[match[2]]}.{match[3]}" if match else name
