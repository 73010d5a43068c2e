"""Computes the stages that families share: text encoding, VAE encode and decode, and the weighting
of regional predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import SeenPicture
from katz_graph.files.images import resize
from katz_graph.ir.values import PictureRows, TextEncoding
from katz_graph.models.families.shared.stages import SEEN
from katz_graph.models.stages import Loop, Outputs
from katz_graph.models.text.evaluate import with_sizes
from katz_graph.models.vae import coding as vae
from katz_graph.picture.batch import repeated
from katz_graph.sampling.areas import fit_mask
from katz_graph.sampling.areas import weigh as weigh_prediction
from katz_graph.sampling.prediction import latent_dtype

UNPOOLED = (
    "the model needs pooled text, the conditioning has none: encode the prompt with the model's "
    "own text encoders"
)


def bind_text(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    guidance = inputs["guidance"]
    return {
        "batch": loop.shape[0],
        "size": tuple(map(loop.latent.pixels, loop.shape[-2:])),
        "encoding": inputs["encoding"],
        "guidance": None if guidance is None else torch.tensor([guidance]),
    }


def bind_vision(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"encoding": inputs["encoding"]}


def vision(see: Callable[[SeenPicture], PictureRows], given: Mapping[str, Any]) -> Outputs:
    return (see(given["encoding"]),)


def text(encode: Callable[..., TextEncoding], given: Mapping[str, Any]) -> Outputs:
    """Encodes a prompt and repeats the encoding for every picture of the batch."""
    seen = [rows for name, rows in given.items() if name.startswith(SEEN)]
    encoded = encode(given["encoding"], seen)
    if not given["pooled"]:  # packs may add pooled text; one model's texts must agree
        encoded = replace(encoded, pooled=None)
    elif encoded.pooled is None:
        raise InputError(UNPOOLED)
    encoded = with_sizes(encoded, given["sizes"], *given["size"])
    encoded = replace(encoded, guidance=given["guidance"])
    parts = {field.name: getattr(encoded, field.name) for field in fields(encoded)}
    every: dict[str, Any] = {
        name: repeated(part, given["batch"])
        for name, part in parts.items()
        if isinstance(part, Tensor)
    }
    return (replace(encoded, **every),)


def bind_weigh(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Resizes the mask to the latent, unless a node of the loop computes the mask."""
    mask, dtype = inputs.get("mask"), latent_dtype(loop.parametrisation, loop.dtype)
    x = torch.empty(loop.shape, dtype=dtype)
    return {"fitted": fit_mask(mask, x) if isinstance(mask, Tensor) else None}


def weigh(module: None, given: Mapping[str, Any]) -> Outputs:
    x: Tensor = given["step"].x
    mask = fit_mask(given["mask"], x) if "mask" in given else given["fitted"]
    where = given["top"], given["left"], mask
    return (weigh_prediction(given["prediction"], x, given["strength"], *where),)


def vae_decode(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (vae.decode(module, given["part"], given["tile"]),)


def vae_encode(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (vae.encode(module, given["part"], given["tile"]),)


def fit_reference(pixels: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Resizes centre-cropped pictures [b, H, W, C] in 0..1 by nearest-exact to [batch, 3, height,
    width], and repeats them to fill the batch.
    """
    if pixels.shape[-1] == 1:
        pixels = pixels.expand(-1, -1, -1, 3)
    return _fitted(pixels[..., :3], batch, height, width)


def fit_visible(mask: Tensor, batch: int, height: int, width: int) -> Tensor:
    """Resizes centre-cropped masks [b, H, W] by nearest-exact to the cells of a latent, [batch, 1,
    height, width], and repeats them to fill the batch.
    """
    return _fitted(mask[..., None], batch, height, width)


def _fitted(pixels: Tensor, batch: int, height: int, width: int) -> Tensor:
    fitted = resize(pixels, width, height, "nearest-exact", "center").movedim(-1, 1)
    return repeated(fitted, batch).contiguous()
