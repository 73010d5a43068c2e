"""Makes the extra input channels of inpainting and instruction-editing models."""

from __future__ import annotations

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Concatenated
from katz_graph.picture.latents import fitted
from katz_graph.sampling.areas import fit_mask

INPAINTING, EDITING = 5, 4  # channels: mask and masked picture; picture
# a uniformly grey picture as a scaled latent of Stable Diffusion's VAE
BLANK = (0.8223, -0.6876, 0.6364, 0.1380)


def concatenated_channels(seen: Concatenated, extra: int, like: Tensor, scale: float) -> Tensor:
    """Returns the extra channels [B, extra, h, w] for a latent `like` [B, 4, h, w]. `scale`: the
    model's scaling factor of latents.

    Inpainting: the mask (rounded, 1 = repaint), then the scaled latent of the masked picture.
    Editing (Brooks et al. 2023, section 3.2): the unscaled latent. Raises InputError for a model
    with other channels.
    """
    picture = None if seen.latent is None else fitted(seen.latent.pixels, like)
    if extra == EDITING:
        return torch.zeros_like(like) if picture is None else picture
    if extra != INPAINTING:
        raise InputError(
            f"the model takes {extra} channels beside the latent's, expected 5 (inpainting) or 4 "
            "(editing by instruction)"
        )
    if seen.mask is None or picture is None:
        blank = like.new_tensor(BLANK).view(1, -1, 1, 1).expand_as(like)
        return torch.cat([torch.ones_like(like[:, :1]), blank], dim=1)
    return torch.cat([fit_mask(seen.mask.pixels, like).round(), picture * scale], dim=1)
