"""Encodes and decodes pictures with the VAE of any kind. Latents are as on the wires between nodes:
not multiplied by the scaling factor.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.recipe import Tile
from katz_graph.models.stages import named
from katz_graph.models.vae.kinds import kind_of_module
from katz_graph.picture.batch import like_channels
from katz_graph.picture.compose import in_tiles


class Overflowed(Exception):
    """Signals NaN or infinity from a VAE in half precision: it must run again in float32."""


def space(vae: Any) -> LatentSpace:
    """Returns the latent space of a loaded VAE."""
    return kind_of_module(vae).space(vae.config)


def colours(vae: Any) -> int:
    """Counts the channels of a loaded VAE's pictures."""
    return int(vae.config.in_channels)


def encoded(vae: Any, pictures: Tensor) -> Tensor:
    """Encodes pictures [B, C, H, W] in -1..1 to the posterior mean [B, c, h, w]."""
    latents: Tensor = named(kind_of_module(vae).encode)(vae, pictures)
    return latents


def decoded(vae: Any, latents: Tensor) -> Tensor:
    """Decodes latents [B, c, h, w] to pictures [B, C, H, W] in -1..1."""
    pictures: Tensor = named(kind_of_module(vae).decode)(vae, latents)
    return pictures


def check_samples(space: LatentSpace, samples: Tensor, place: str = "") -> None:
    """Raises InputError unless a VAE with this space can decode the latent. `place`: the VAE's file
    or folder.
    """
    if samples.ndim != 4 or samples.shape[1] != space.channels:
        raise InputError(
            f"{place}{': ' if place else ''}VAE decode: the latent has shape "
            f"{list(samples.shape)}, expected [batch, {space.channels}, height, width]: use the "
            "VAE of the latent's model"
        )


def check_pixels(pixels: Tensor) -> None:
    """Raises InputError unless a VAE can encode these pictures."""
    if pixels.ndim != 4 or pixels.shape[3] < 3:
        raise InputError(
            f"VAE encode: the picture has shape {list(pixels.shape)}, expected [batch, "
            "height, width, 3]"
        )


def decode(vae: Any, samples: Tensor, tile: Tile | None = None) -> Tensor:
    """Decodes [B, C, h, w] to float32 [B, H, W, 3] in 0..1, or [B, H, W, 4] with alpha.

    Tiles are decoded in one pass and their overlaps blended linearly. The result differs slightly
    from an untiled decode because norms and attention see single tiles. Raises InputError for the
    wrong number of channels, Overflowed if half precision does not suffice, and RunError if the
    picture has NaN or infinity even in float32.
    """
    check_samples(space(vae), samples)
    factor = space(vae).factor

    def run(z: Tensor) -> Tensor:
        if tile is None:
            return decoded(vae, z)
        side, overlap = tile.side // factor, tile.overlap // factor
        return in_tiles(z, factor, side, overlap, lambda part: decoded(vae, part))

    return (_finite(vae, samples, run, "VAE decode").movedim(1, -1).float() / 2 + 0.5).clamp(0, 1)


def encode(vae: Any, pixels: Tensor, tile: Tile | None = None) -> Tensor:
    """Encodes pictures [B, H, W, 3 or 4] in 0..1, with sides that are multiples of the VAE's
    factor, to the posterior mean, float32 [B, C, h, w]. Pictures without alpha are opaque. Raises
    the errors of `decode`.
    """
    check_pixels(pixels)
    factor, channels = space(vae).factor, colours(vae)

    def run(x: Tensor) -> Tensor:
        if tile is None:
            return encoded(vae, x)
        side, overlap = tile.side // factor * factor, tile.overlap // factor * factor
        return in_tiles(x, Fraction(1, factor), side, overlap, lambda part: encoded(vae, part))

    pixels = like_channels(pixels, channels)
    return _finite(vae, pixels.movedim(-1, 1) * 2 - 1, run, "VAE encode").float()


def _finite(vae: Any, x: Tensor, function: Callable[[Tensor], Tensor], name: str) -> Tensor:
    weight = next(vae.parameters())
    with torch.no_grad():
        result = function(x.to(weight))
    if result.isfinite().all():
        return result
    if weight.dtype != torch.float32:
        raise Overflowed
    given = (
        "its input contains NaN or infinity: check the nodes before it"
        if not x.isfinite().all()
        else "its input was finite: the VAE's weights may be broken"
    )
    raise RunError(f"{name}: the result contains NaN or infinity in float32 too; {given}")
