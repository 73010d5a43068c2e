"""From the recipe of an upscaler to its live network."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import nn

from katz_graph.errors import InputError
from katz_graph.models.identity import check_unchanged
from katz_graph.upscale.networks import CompactNet, RrdbNet
from katz_graph.upscale.recipe import Rrdb, UpscaleModelRecipe


def load_upscaler(recipe: UpscaleModelRecipe, device: torch.device) -> nn.Module:
    """The network in float32. InputError when the file has changed since the recipe was made, or does not fit."""
    check_unchanged(recipe.file)
    path = recipe.file.path
    with torch.device("meta"):
        network = RrdbNet(recipe.shape) if isinstance(recipe.shape, Rrdb) else CompactNet(recipe.shape)
    stored = load_file(path, device=str(device))
    try:
        network.load_state_dict({name: stored[original].float() for name, original in recipe.names}, assign=True)
    except RuntimeError as error:
        reason = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise InputError(f"{path}: its weights do not fit the {type(network).__name__} that they look like: {reason}") from None
    return network.eval().requires_grad_(False)
