"""Loads the network of an upscaler's recipe."""

from __future__ import annotations

import torch
from safetensors import safe_open
from torch import nn

from katz_graph.errors import InputError
from katz_graph.host.out_of_memory import is_out_of_memory
from katz_graph.models.loading.identity import check_unchanged
from katz_graph.recipe import UpscaleModelRecipe
from katz_graph.upscale.networks import bare_network


def load_upscaler(recipe: UpscaleModelRecipe, device: torch.device) -> nn.Module:
    """Loads the network in float32. InputError when the file has changed since the recipe was made,
    or does not fit.
    """
    check_unchanged(recipe.file)
    path = recipe.file.path
    network = bare_network(recipe.shape)
    with safe_open(path, framework="pt", device=str(device)) as stored:  # mapped: copied, so that who writes to the file changes nothing
        weights = {name: stored.get_tensor(original).to(torch.float32, copy=True) for name, original in recipe.names}
    check_unchanged(recipe.file)
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise InputError(f"{path}: its weights do not fit the {type(network).__name__} that they look like: {reason}") from None
    return network.eval().requires_grad_(False)


def size_of(recipe: UpscaleModelRecipe) -> int:
    """Returns the bytes of its weights in memory."""
    check_unchanged(recipe.file)
    return 4 * sum(weight.numel() for weight in bare_network(recipe.shape).parameters())
