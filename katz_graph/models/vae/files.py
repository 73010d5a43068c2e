"""Derives the configurations of VAEs from the shapes of single files, in the original layouts or in
diffusers', and renames tensors.

Takes values that shapes do not determine from the published models. Never imports torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import count
from typing import Any

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import LatentSpace
from katz_graph.models.loading.configurations import Shapes, how_many

LATENTS = (4, 16)  # supported numbers of latent channels
PACKED_LATENTS, FLAT_LATENTS, NESTED_LATENTS = 32, 16, 64
GROUPS = 32  # of every group norm
# a tensor of the encoder and the decoder of a VAE in the original layout
ORIGINAL = {"encoder.down.0.block.0.conv1.weight", "decoder.up.0.block.0.conv1.weight"}
KERNEL_AXES = 5  # of a convolution along time, height and width
ALONG_TIME = ".time_conv."  # layers that one frame does not use
# the first names of video layouts, as patterns -> diffusers'
VIDEO_NAMES = (
    (r"^conv1\.", "quant_conv."),
    (r"^conv2\.", "post_quant_conv."),
    (r"coder\.conv1\.", "coder.conv_in."),
    (r"coder\.head\.0\.", "coder.norm_out."),
    (r"coder\.head\.2\.", "coder.conv_out."),
    (r"\.middle\.0\.", ".mid_block.resnets.0."),
    (r"\.middle\.1\.", ".mid_block.attentions.0."),
    (r"\.middle\.2\.", ".mid_block.resnets.1."),
    (r"\.residual\.0\.", ".norm1."),
    (r"\.residual\.2\.", ".conv1."),
    (r"\.residual\.3\.", ".norm2."),
    (r"\.residual\.6\.", ".conv2."),
    (r"\.shortcut\.", ".conv_shortcut."),
)


def of_blocks(shapes: Shapes, trained: LatentSpace, overflows: bool) -> dict[str, Any]:
    """Derives the configuration of an AutoencoderKL, or its encoder or decoder. Shapes do not
    determine scaling factor and overflow in half precision.
    """
    return _of_blocks(shapes, LATENTS) | {
        "scaling_factor": trained.scale,
        "force_upcast": overflows,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
    }


def _of_blocks(shapes: Shapes, expected: tuple[int, ...]) -> dict[str, Any]:
    """Derives the part of the configuration that shapes determine."""
    original, encodes = not ORIGINAL.isdisjoint(shapes), "encoder.conv_in.weight" in shapes
    decodes = "decoder.conv_in.weight" in shapes
    resnet = ("encoder.down" if encodes else "decoder.up") + (
        ".{}.block.{}.conv1.weight" if original else "_blocks.{}.resnets.{}.conv1.weight"
    )
    widths = _widths(shapes, resnet)
    layers = next(layer for layer in count() if resnet.format(0, layer) not in shapes)
    if not encodes:  # a decoder has one more layer; diffusers numbers its levels from the deepest
        widths, layers = widths if original else widths[::-1], layers - 1
    if decodes:
        latents, colours = shapes["decoder.conv_in.weight"][1], shapes["decoder.conv_out.weight"][0]
    else:  # an encoder returns a mean and a variance per channel
        latents, colours = (
            shapes["encoder.conv_out.weight"][0] // 2,
            shapes["encoder.conv_in.weight"][1],
        )
    _check_latents(latents, *expected)
    return {
        "_class_name": "AutoencoderKL",
        "in_channels": shapes["encoder.conv_in.weight"][1] if encodes else colours,
        "out_channels": colours,
        "down_block_types": ["DownEncoderBlock2D"] * len(widths),
        "up_block_types": ["UpDecoderBlock2D"] * len(widths),
        "block_out_channels": widths,
        "layers_per_block": layers,
        "latent_channels": latents,
        "norm_num_groups": GROUPS,
    }


def _widths(shapes: Shapes, resnet: str) -> list[int]:
    """Returns the width of each level's first layer, in the order of the file."""
    levels = next(level for level in count() if resnet.format(level, 0) not in shapes)
    return [shapes[resnet.format(level, 0)][0] for level in range(levels)]


def _check_latents(channels: int, *expected: int) -> None:
    if channels not in expected:
        raise InputError(
            f"a VAE with latents of {channels} channels, expected {' or '.join(map(str, expected))}"
        )


def of_packed(shapes: Shapes, trained: LatentSpace, overflows: bool) -> dict[str, Any]:
    """Derives the configuration of an AutoencoderKLFlux2, whose decoder may have other widths than
    its encoder.
    """
    shapes = {packed_name(name): shape for name, shape in shapes.items()}
    values = _of_blocks(shapes, (PACKED_LATENTS,))
    original = "decoder.up.{}.block.{}.conv1.weight"
    widths = _widths(shapes, original)
    if not widths:
        widths = _widths(shapes, "decoder.up_blocks.{}.resnets.{}.conv1.weight")[::-1]
    return values | {
        "_class_name": "AutoencoderKLFlux2",
        "decoder_block_out_channels": None if widths == values["block_out_channels"] else widths,
        "use_quant_conv": "quant_conv.weight" in shapes,
        "use_post_quant_conv": "post_quant_conv.weight" in shapes,
        "batch_norm_eps": 1e-4,
        "patch_size": [2, 2],
    }


def packed_name(name: str) -> str:
    """Returns a name with the layers next to the latent outside of the halves, where the authors
    have them inside.
    """
    return re.sub(r"^(encoder|decoder)\.(post_)?quant_conv\.", r"\2quant_conv.", name)


def of_flat_levels(shapes: Shapes, trained: LatentSpace, overflows: bool) -> dict[str, Any]:
    """Derives the configuration of an AutoencoderKLQwenImage; statistics of latents are the
    published ones.
    """
    shapes = _renamed(shapes)
    base, _, values = _of_levels(shapes, FLAT_LATENTS, "upsamplers.0")
    return values | {
        "_class_name": "AutoencoderKLQwenImage",
        "base_dim": base,
        "input_channels": shapes["decoder.conv_out.weight"][0],
    }


def of_nested_levels(shapes: Shapes, trained: LatentSpace, overflows: bool) -> dict[str, Any]:
    """Derives the configuration of an AutoencoderKLQwenImage21; statistics of latents are the
    published ones. Raises InputError for kernels along time, which its video relatives have.
    """
    shapes = _renamed(shapes)
    last = shapes["decoder.conv_out.weight"]
    if len(last) == KERNEL_AXES and last[2] > 1:
        raise InputError(
            f"a VAE of Wan 2.2 for video, with latents of {shapes['decoder.conv_in.weight'][1]} "
            f"channels, expected one for pictures, such as Qwen-Image 2.1's with {NESTED_LATENTS}"
        )
    base, encoder, values = _of_levels(shapes, NESTED_LATENTS, "upsampler")
    if not any(values["temperal_downsample"]):  # pictures need no layers along time
        values["temperal_downsample"] = [False] + [True] * (len(values["dim_mult"]) - 2)
    return values | {
        "_class_name": "AutoencoderKLQwenImage21",
        "base_dim": encoder,
        "decoder_base_dim": base,
        "is_residual": True,
        "in_channels": shapes.get("encoder.conv_in.weight", (0, last[0]))[1],
        "out_channels": last[0],
    }


def _of_levels(shapes: Shapes, latents: int, upsampler: str) -> tuple[int, int, dict[str, Any]]:
    """Returns the width of the decoder's and the encoder's first level, and the values that both
    classes have. Raises KeyError without a decoder, ValueError for uneven widths.
    """
    _check_latents(shapes["decoder.conv_in.weight"][1], latents)
    widths = _widths(shapes, "decoder.up_blocks.{}.resnets.{}.conv1.weight")[::-1]
    base = widths[0]
    if any(width % base for width in widths):
        raise ValueError(widths)
    along_time = [
        f"decoder.up_blocks.{level}.{upsampler}{ALONG_TIME}weight" in shapes
        for level in range(len(widths) - 1)
    ]
    encoder = shapes.get("encoder.conv_in.weight", (base,))[0]
    return (
        base,
        encoder,
        {
            "z_dim": latents,
            "dim_mult": [width // base for width in widths],
            "num_res_blocks": how_many(shapes, "decoder.up_blocks.0.resnets.{}.") - 1,
            "attn_scales": [],
            "temperal_downsample": along_time[::-1],
        },
    )


def _renamed(shapes: Shapes) -> Shapes:
    names = video_names(shapes)
    return {names[name]: shape for name, shape in shapes.items()}


def video_names(names: Iterable[str]) -> dict[str, str]:
    """Maps the names of a video layout to diffusers': levels in sequence (as in Wan 2.1) or nested
    (as in Wan 2.2). Names of diffusers stay.
    """
    names = list(names)
    # the first layer that resamples ends the first level
    ends = [
        int(match[1])
        for name in names
        if (match := re.match(r"decoder\.upsamples\.(?:0\.upsamples\.)?(\d+)\.resample\.", name))
    ]
    layers = min(ends, default=0)  # of a level of the decoder; the encoder's have one less
    return {name: _video_name(name, layers) for name in names}


def _video_name(name: str, layers: int) -> str:
    for pattern, ours in VIDEO_NAMES:
        name = re.sub(pattern, ours, name)
    nested = re.match(r"(en|de)coder\.(down|up)samples\.(\d+)\.\2samples\.(\d+)\.(.*)", name)
    if nested is not None:
        half, way, level, layer, rest = nested.groups()
        end = int(layer) == layers - (half == "en")
        place = f"{way}sampler" if end else f"resnets.{layer}"
        return f"{half}coder.{way}_blocks.{level}.{place}.{rest}"
    flat = re.match(r"(en|de)coder\.(down|up)samples\.(\d+)\.(.*)", name)
    if flat is None:
        return name
    half, way, number, rest = flat.groups()
    if half == "en":
        return f"encoder.down_blocks.{number}.{rest}"
    level, layer = divmod(int(number), layers + 1)
    place = "upsamplers.0" if layer == layers else f"resnets.{layer}"
    return f"decoder.up_blocks.{level}.{place}.{rest}"
