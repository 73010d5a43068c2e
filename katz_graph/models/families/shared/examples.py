"""Builds example calls of text encoders and VAEs on meta tensors to count their cost, like
`katz_graph.models.families.unet.examples` for UNets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from katz_graph.models.families.shared.example_inputs import features
from katz_graph.models.stages import Example, Sized
from katz_graph.models.text.kinds import kind_of_module
from katz_graph.models.text.sequence import last_state
from katz_graph.models.text.vision import tower_rows
from katz_graph.models.vae import coding

ROWS = 4  # the height of a window of those towers that have windows


def text(module: Any, sizes: Sized) -> Example:
    in_rows = kind_of_module(module).rows
    rows = -(-sizes.tokens // module.config.max_position_embeddings) if in_rows else 1
    ids = torch.zeros(sizes.batch * rows, -(-sizes.tokens // rows), dtype=torch.long, device="meta")
    return lambda: [last_state(module, ids)], [module]


def vision(module: Any, sizes: Sized) -> Example:
    """Returns an example whose picture is four merged patches high."""
    settings, columns = module.config, -(-sizes.tokens // ROWS)
    values = settings.in_channels * settings.temporal_patch_size * settings.patch_size**2
    count = ROWS * columns * settings.spatial_merge_size**2
    read = torch.zeros(count, values, device="meta")

    def call() -> list[Tensor]:
        seen = tower_rows(module, read, ROWS, columns)
        return [seen.hidden, *seen.deep]

    return call, [module]


def vae_decode(module: Any, sizes: Sized) -> Example:
    latent = features(module, sizes, coding.space(module).channels)
    return lambda: [coding.decoded(module, latent)], [module.decoder, module.post_quant_conv]


def vae_encode(module: Any, sizes: Sized) -> Example:
    factor = coding.space(module).factor
    pixels = features(module, sizes, coding.colours(module), factor)
    return lambda: [coding.encoded(module, pixels)], [module.encoder, module.quant_conv]
