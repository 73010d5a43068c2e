"""Encodes and decodes pictures with diffusers' AutoencoderKL. Latents are not multiplied by the
VAE's scaling factor.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError, RunError
from katz_graph.core.recipe import Tile
from katz_graph.picture.compose import in_tiles


class Overflowed(Exception):
    """Signals NaN or infinity from a VAE in half precision: it must run again in float32."""


def check_samples(vae: Any, samples: Tensor) -> None:
    """Raises InputError unless the VAE can decode this latent."""
    if samples.ndim != 4 or samples.shape[1] != vae.config.latent_channels:
        raise InputError(
            f"VAE decode: the latent has shape {list(samples.shape)}, expected [batch, "
            f"{vae.config.latent_channels}, height, width]"
        )


def check_pixels(pixels: Tensor) -> None:
    """Raises InputError unless a VAE can encode these pictures."""
    if pixels.ndim != 4 or pixels.shape[3] < 3:
        raise InputError(
            f"VAE encode: the picture has shape {list(pixels.shape)}, expected [batch, "
            "height, width, 3]"
        )


def decode(vae: Any, samples: Tensor, tile: Tile | None = None) -> Tensor:
    """Decodes [B, C, h, w] to float32 [B, H, W, 3] in 0..1.

    Tiles are decoded in one pass and their overlaps blended linearly. The result differs slightly
    from an untiled decode because norms and attention see single tiles. Raises InputError for the
    wrong number of channels, Overflowed if half precision does not suffice, and RunError if the
    picture has NaN or infinity even in float32.
    """
    check_samples(vae, samples)
    factor = factor_of(vae)

    def run(z: Tensor) -> Tensor:
        if tile is None:
            return vae.decode(z).sample  # type: ignore[no-any-return]
        return in_tiles(
            z,
            factor,
            tile.side // factor,
            tile.overlap // factor,
            lambda part: vae.decode(part).sample,
        )

    return (_finite(vae, samples, run, "VAE decode").movedim(1, -1).float() / 2 + 0.5).clamp(0, 1)


def encode(vae: Any, pixels: Tensor, tile: Tile | None = None) -> Tensor:
    """Encodes pictures [B, H, W, 3] in 0..1, with sides that are multiples of the VAE's factor, to
    the posterior mean, float32 [B, C, h, w]. Raises the errors of `decode`.
    """
    check_pixels(pixels)
    factor = factor_of(vae)

    def run(x: Tensor) -> Tensor:
        if tile is None:
            return vae.encode(x).latent_dist.mean  # type: ignore[no-any-return]
        side, overlap = tile.side // factor * factor, tile.overlap // factor * factor
        return in_tiles(
            x, Fraction(1, factor), side, overlap, lambda part: vae.encode(part).latent_dist.mean
        )

    return _finite(vae, pixels[..., :3].movedim(-1, 1) * 2 - 1, run, "VAE encode").float()


def factor_of(vae: Any) -> int:
    """Returns the side of a latent cell in pixels."""
    return int(2 ** (len(vae.config.block_out_channels) - 1))


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
