"""Makes the extra input channels of FLUX.1 fill and control models."""

from __future__ import annotations

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Concatenated
from katz_graph.picture.batch import repeated
from katz_graph.picture.latents import fitted, resample


def concatenated_channels(
    seen: Concatenated, extra: int, like: Tensor, space: LatentSpace
) -> Tensor:
    """Returns the extra channels [B, extra, h, w] for a latent `like` [B, C, h, w]: the picture as
    a normalised latent and, for fill models, the mask pixels of each cell as channels. Defaults to
    a zero latent and a mask of ones. Raises InputError for a model with other channels.
    """
    cells = space.factor**2
    if extra not in (space.channels, space.channels + cells):
        raise InputError(
            f"the model takes {extra} channels in addition to the latent's, expected "
            f"{space.channels} (control) or {space.channels + cells} (filling in)"
        )
    given = torch.zeros_like(like) if seen.latent is None else fitted(seen.latent.pixels, like)
    picture = space.normalised(given)
    if extra == space.channels:
        return picture
    height, width = map(space.pixels, like.shape[-2:])
    mask = torch.ones(len(like), 1, height, width)
    if seen.mask is not None:
        given = seen.mask.pixels
        given = given.reshape(-1, 1, *given.shape[-2:]).to(like)
        mask = repeated(resample(given, width, height, "bilinear", "center"), len(like))
    pixels = torch.nn.functional.pixel_unshuffle(mask, space.factor)
    return torch.cat([picture, pixels], dim=1)
