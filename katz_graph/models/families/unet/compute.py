"""Computes the stages of UNets and their ControlNets on live modules.

The declarations in `stages` name these functions. No function mutates state, waits for a device or
reads tensor values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.core.patches import freeu_patches, network_wrapper
from katz_graph.core.recipe import Concatenated, ModelRecipe
from katz_graph.ir.values import Residuals, Step, TextEncoding
from katz_graph.models.active import collected, layers_of
from katz_graph.models.families.shared.compute import fit_reference
from katz_graph.models.families.unet import blocks as unet
from katz_graph.models.families.unet import control_blocks as controlnet
from katz_graph.models.families.unet.attention import cross_attention_keys_values
from katz_graph.models.families.unet.embedding import added_embedding
from katz_graph.models.families.unet.freeu import skip_hook
from katz_graph.models.families.unet.wrapper import call_wrapper
from katz_graph.models.family import architecture
from katz_graph.models.stages import Loop, Outputs
from katz_graph.picture.latents import fitted
from katz_graph.sampling.areas import fit_mask
from katz_graph.sampling.prediction import to_denoised


def keys_values(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (cross_attention_keys_values(module, given["text"].hidden),)


def added(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (added_embedding(module, given["text"]),)


def bind_reference(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Crops and resizes a reference image, by nearest-exact, to the picture or the operation's part
    of it.
    """
    height, width = map(loop.latent.pixels, inputs["cells"] or loop.shape[2:])
    pixels = fit_reference(inputs["image"].pixels, loop.shape[0], height, width)
    return {"pixels": pixels, "types": inputs["control_net"].types}


def reference(module: Any, given: Mapping[str, Any]) -> Outputs:
    return (controlnet.embed_reference(module, given["pixels"], given["types"]),)


def bind_channels(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    """Makes the extra input channels, cropped to the operation's part of the latent."""
    model: ModelRecipe = inputs["model"]
    like, part = torch.zeros(loop.shape), inputs["part"]
    whole = concatenated_channels(
        inputs["concatenated"], architecture(model.network).extra_channels, like, model.latent
    )
    return {
        "channels": whole
        if part is None
        else whole[..., part.top : part.top + part.height, part.left : part.left + part.width]
    }


def channels(module: None, given: Mapping[str, Any]) -> Outputs:
    return (given["channels"],)


def encode(module: Any, given: Mapping[str, Any]) -> Outputs:
    start = given["step"] if given.get("features") is None else given["features"]
    blocks = given["first_block"], given["last_block"]
    layers = layers_of(given)
    features = unet.encode(
        module,
        start,
        given["text"],
        given["cached"],
        *blocks,
        given["added"],
        given.get("concatenated"),
        layers,
    )
    return features, *collected(layers)


def mid(module: Any, given: Mapping[str, Any]) -> Outputs:
    layers = layers_of(given)
    features = unet.mid(module, given["features"], given["text"], given["cached"], layers)
    return features, *collected(layers)


def bind_decode(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {
        "patches": freeu_patches(inputs["model"].patches),
        "parametrisation": loop.parametrisation,
    }


def decode(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns features, and the prediction: denoised, or raw under a diffusers scheduler."""
    layers = layers_of(given)
    features, raw = unet.decode(
        module,
        given["features"],
        given["text"],
        given["cached"],
        given.get("skips"),
        _residuals(given),
        given["first_block"],
        given["last_block"],
        skip_hook(module, given["patches"]),
        given.get("read"),
        layers,
    )
    prediction = None if raw is None else to_denoised(raw, features.step, given["parametrisation"])
    return features, prediction, *collected(layers)


def _residuals(given: Mapping[str, Any]) -> list[Residuals]:
    return [
        given[name]
        for name in sorted(given)
        if name.startswith("residuals_") and isinstance(given[name], Residuals)
    ]


def absorb_residuals(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Adds residuals to the hidden state and to the skips that the blocks read, `read`. Requests
    with and without ControlNets then have inputs of equal form.
    """
    hidden, read = unet.with_residuals(
        given["features"], given.get("skips"), _residuals(given), given["first_block"]
    )
    rest = {name: value for name, value in given.items() if not name.startswith("residuals_")}
    return {**rest, "features": replace(given["features"], hidden=hidden), "read": read}


def bind_wrapped(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    wrapper = network_wrapper(inputs["model"].patches)
    return {
        **bind_decode(inputs, loop),
        "wrapper": wrapper,
        "table": loop.table_of(inputs["model"]),
        "batch": loop.shape[0],
    }


def wrapped(module: Any, given: Mapping[str, Any]) -> Outputs:
    """Returns the denoised prediction of the whole UNet, run by a pack's wrapper."""

    def predict(step: Step, text: TextEncoding, cached: Any) -> Tensor:
        inner = {
            **given,
            "first_block": 0,
            "last_block": -1,
            "step": step,
            "text": text,
            "cached": cached,
        }
        (encoded,) = encode(module, inner)
        (middle,) = mid(module, {**inner, "features": encoded})
        _, prediction = decode(module, {**inner, "features": middle})
        return cast(Tensor, prediction)

    sides = [int(given["uncond"])] * (len(given["step"].x) // given["batch"])
    return (
        call_wrapper(
            given["wrapper"],
            predict,
            given["step"],
            given["text"],
            given["cached"],
            sides,
            given["table"],
        ),
    )


def control(module: Any, given: Mapping[str, Any]) -> Outputs:
    once = given["reference"], given["strength"], given["cached"], given["added"], given["types"]
    return (controlnet.control(module, given["step"], given["text"], *once),)


def bind_control(inputs: Mapping[str, Any], loop: Loop) -> Mapping[str, Any]:
    return {"types": inputs["control_net"].types}


INPAINTING, EDITING = 5, 4  # channels: mask and masked picture; picture
# a uniformly grey picture as a scaled latent of Stable Diffusion's VAE
BLANK = (0.8223, -0.6876, 0.6364, 0.1380)


def concatenated_channels(
    seen: Concatenated, extra: int, like: Tensor, space: LatentSpace
) -> Tensor:
    """Returns the extra channels [B, extra, h, w] for a latent `like` [B, 4, h, w] of the model's
    latent space.

    Inpainting: the mask (rounded, 1 = repaint), then the scaled latent of the masked picture.
    Editing (Brooks et al. 2023, section 3.2): the unscaled latent. Raises InputError for a model
    with other channels.
    """
    picture = None if seen.latent is None else fitted(seen.latent.pixels, like)
    if extra == EDITING:
        return torch.zeros_like(like) if picture is None else picture
    if extra != INPAINTING:
        raise InputError(
            f"the model takes {extra} channels in addition to the latent's, expected 5 "
            "(inpainting) or 4 (editing by instruction)"
        )
    if seen.mask is None or picture is None:
        blank = like.new_tensor(BLANK).view(1, -1, 1, 1).expand_as(like)
        return torch.cat([torch.ones_like(like[:, :1]), blank], dim=1)
    return torch.cat([fit_mask(seen.mask.pixels, like).round(), space.normalised(picture)], dim=1)
