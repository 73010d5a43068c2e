"""Builds, fills and runs the VAEs of each kind, with diffusers' modules."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, cast

import diffusers
import torch
from diffusers.loaders.single_file_utils import convert_ldm_vae_checkpoint
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle

from katz_graph.models.vae.files import ALONG_TIME, KERNEL_AXES, ORIGINAL, packed_name, video_names

# VAEs of diffusers before 0.17
OLD_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
BATCHES = "bn.num_batches_tracked"  # a count that only training reads


def build(values: Mapping[str, Any]) -> Any:
    return getattr(diffusers, values["_class_name"]).from_config(dict(values))


def convert(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the tensors of an AutoencoderKL, in any layout, under diffusers' names."""
    if not ORIGINAL.isdisjoint(tensors):
        return dict(convert_ldm_vae_checkpoint(tensors, values))
    return {_present_attention(name): tensor for name, tensor in tensors.items()}


def _present_attention(name: str) -> str:
    match = re.fullmatch(r"(.*\.attentions\.\d+)\.(query|key|value|proj_attn)\.(.*)", name)
    return f"{match[1]}.{OLD_ATTENTION[match[2]]}.{match[3]}" if match else name


def encode(vae: Any, pictures: Tensor) -> Tensor:
    return cast(Tensor, vae.encode(pictures).latent_dist.mean)


def decode(vae: Any, latents: Tensor) -> Tensor:
    return cast(Tensor, vae.decode(latents).sample)


def build_frame(values: Mapping[str, Any]) -> Any:
    """Builds a VAE of video for one frame: causal kernels meet zeros in all but their last time
    slice, so its convolutions are two-dimensional, and layers along time are not used.

    diffusers' class for pictures has these convolutions. Its names are those of the video class.
    """
    build = diffusers.AutoencoderKLQwenImage21
    values = dict(values)
    if values["_class_name"] != build.__name__:
        video = _with_defaults(diffusers.AutoencoderKLQwenImage, values)
        colours = video.pop("input_channels")
        values = video | {
            "decoder_base_dim": video["base_dim"],
            "is_residual": False,
            "in_channels": colours,
            "out_channels": colours,
        }
    module = build.from_config({**values, "_class_name": build.__name__})
    for layer in module.modules():
        if hasattr(layer, "time_conv"):
            del layer.time_conv
    return module


def _with_defaults(model: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    known = list(inspect.signature(model.__init__).parameters.values())[1:]
    return {one.name: values.get(one.name, one.default) for one in known}


def convert_frame(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Returns the last time slice of each kernel, and no layer along time."""
    names = video_names(tensors)
    return {
        names[name]: tensor[:, :, -1] if tensor.ndim == KERNEL_AXES else tensor
        for name, tensor in tensors.items()
        if ALONG_TIME not in names[name]
    }


def encode_frame(vae: Any, pictures: Tensor) -> Tensor:
    moments: Tensor = vae.quant_conv(vae.encoder(pictures.unsqueeze(2)))
    return moments.squeeze(2).chunk(2, dim=1)[0]


def decode_frame(vae: Any, latents: Tensor) -> Tensor:
    frames: Tensor = vae.decoder(vae.post_quant_conv(latents.unsqueeze(2)), first_chunk=True)
    return frames.squeeze(2)


def build_packed(values: Mapping[str, Any]) -> Any:
    module = build(values)
    module.bn.num_batches_tracked = None
    return module


def convert_packed(tensors: dict[str, Tensor], values: Mapping[str, Any]) -> dict[str, Tensor]:
    tensors = {packed_name(name): tensor for name, tensor in tensors.items()}
    statistics = {name: one for name, one in tensors.items() if name.startswith("bn.")}
    found = convert(tensors, values) | statistics
    return {name: tensor for name, tensor in found.items() if name != BATCHES}


def encode_packed(vae: Any, pictures: Tensor) -> Tensor:
    """Packs cells of 2 x 2 into channels and brings each to the model's range by the running
    statistics of the batch norm.
    """
    packed = pixel_unshuffle(encode(vae, pictures), vae.config.patch_size[0])
    mean, deviation = _batch_statistics(vae)
    return (packed - mean) / deviation


def decode_packed(vae: Any, latents: Tensor) -> Tensor:
    mean, deviation = _batch_statistics(vae)
    return decode(vae, pixel_shuffle(latents * deviation + mean, vae.config.patch_size[0]))


def _batch_statistics(vae: Any) -> tuple[Tensor, Tensor]:
    mean, variance = (one.view(1, -1, 1, 1) for one in (vae.bn.running_mean, vae.bn.running_var))
    return mean, torch.sqrt(variance + vae.config.batch_norm_eps)
