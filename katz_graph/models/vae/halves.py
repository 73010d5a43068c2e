"""Finds the halves (encoder, decoder) of a VAE in its files: decoding requires no encoder, and vice
versa. Never imports torch.
"""

from __future__ import annotations

from typing import Literal

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component
from katz_graph.models.loading.contents import contents_of

Half = Literal["encoder", "decoder"]
HALVES: tuple[Half, ...] = ("encoder", "decoder")
DOES = {"encoder": "encode pictures", "decoder": "decode latents"}
CONVOLUTIONS = {"encoder": "quant_conv", "decoder": "post_quant_conv"}
"""Maps each half of an AutoencoderKL to the layer next to the latent."""


def halves(part: Component) -> tuple[Half, ...]:
    """Returns the halves (encoder, decoder) found in a VAE's files; both if neither is."""
    names = [name for file in part.weight_files for name in contents_of(file).shapes]
    found = tuple(
        half for half in HALVES if any(name.startswith(f"{part.prefix}{half}.") for name in names)
    )
    return found or HALVES


def check_half(part: Component, half: Half) -> None:
    """Raises InputError for a VAE that lacks a half."""
    if half not in halves(part):
        (other,) = halves(part)
        raise InputError(
            f"{part.folder}: this VAE has only its {other}, so it cannot {DOES[half]}: use a "
            "complete one"
        )


def without_missing_half(part: Component, module: object) -> None:
    """Removes from a VAE's module the half that its files lack."""
    for half in {*HALVES} - {*halves(part)}:
        setattr(module, half, None)
        setattr(module, CONVOLUTIONS[half], None)
