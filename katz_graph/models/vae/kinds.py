"""Declares the kinds of VAEs: their classes in diffusers, their latent spaces, how files show them,
and the functions that build and run them. Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, LatentSpace
from katz_graph.core.recipe import Component, VaeRecipe
from katz_graph.models.configuration import config, expect_class, value_in
from katz_graph.models.loading.configurations import Shapes
from katz_graph.models.vae import files, statistics

if TYPE_CHECKING:
    from torch import Tensor

Values = Mapping[str, Any]
"""A configuration."""
Statistics = tuple[tuple[float, ...], tuple[float, ...]]
"""The mean and the standard deviation of each latent channel."""

PACKED_CHANNELS, PATCH = 32, (2, 2)  # of a packed latent: before packing, and cells per side
LEVELS = 4  # resolutions, unless configured


@dataclass(frozen=True, slots=True)
class VaeKind:
    """Declares a kind of VAE. Functions that need torch are named as `module:function`."""

    class_name: str  # in diffusers
    latent: LatentSpace  # of published models
    # derives the latent space from a configuration; raises ValueError if it is unsupported
    space: Callable[[Values], LatentSpace]
    # counts the channels of the widest layer, from a configuration
    widest: Callable[[Values], int]
    # tensors that show the kind in a single file: one of them, in either layout
    names: tuple[str, ...]
    # derives the configuration from the shapes of a file, the space that its network was trained
    # in, and whether half precision overflows
    configure: Callable[[Shapes, LatentSpace, bool], dict[str, Any]]
    # f(configuration) -> module, on torch's default device
    build: str
    # f(tensors, configuration) -> tensors under the module's names; reads no values
    convert: str
    # f(module, pictures [B, C, H, W] in -1..1) -> mean of the posterior [B, c, h, w]
    encode: str
    # f(module, latents [B, c, h, w]) -> pictures [B, C, H, W] in -1..1
    decode: str
    # counts the values that are loaded of a file's tensor, from its name and shape
    loaded: Callable[[str, Sequence[int]], int] = lambda _, shape: prod(shape)
    colours: str = "in_channels"  # configuration key of a picture's channels
    usual_colours: int = 3  # unless configured
    overflows: bool = False  # in float16, unless configured
    scaled_by_network: bool = False  # files do not contain scale and shift of the latents


def _of_blocks(values: Values) -> LatentSpace:
    """Reads a scale and a shift. Models for statistics of each channel need other noise levels too,
    which their folders do not describe.
    """
    usual = DEFAULT_LATENT_SPACE
    channels = value_in(values, "latent_channels", int, usual.channels)
    factor = 2 ** (len(value_in(values, "block_out_channels", list)) - 1)
    scale = float(value_in(values, "scaling_factor", float, usual.scale))
    if values.get("latents_mean"):
        raise ValueError(
            "this VAE has a mean for each channel of its latents, expected one with a single shift"
        )
    return LatentSpace(channels, factor, scale, float(values.get("shift_factor") or 0.0))


def _of_statistics(factor: int, published: Statistics) -> Callable[[Values], LatentSpace]:
    """Returns a function that reads statistics of each channel. `factor`: unless configured."""

    def space(values: Values) -> LatentSpace:
        channels = value_in(values, "z_dim", int, len(published[0]))
        if values.get("patch_size") not in (None, 1):
            raise ValueError(f"patch_size is {values['patch_size']!r}, expected none")
        mean, deviation = _statistics(values, channels, published)
        levels = len(value_in(values, "dim_mult", list, [1] * factor.bit_length()))
        return LatentSpace.of_statistics(2 ** (levels - 1), mean, deviation)

    return space


def _statistics(values: Values, channels: int, usual: Statistics) -> Statistics:
    mean, deviation = (
        tuple(map(float, value_in(values, name, list, list(published))))
        for name, published in zip(("latents_mean", "latents_std"), usual, strict=True)
    )
    if 0.0 in deviation:
        raise ValueError("latents_std contains 0, expected deviations above 0")
    for name, numbers in (("latents_mean", mean), ("latents_std", deviation)):
        if len(numbers) != channels:
            raise ValueError(
                f"{name} has {len(numbers)} values, expected one for each of {channels} channels"
            )
    return mean, deviation


def _packed(values: Values) -> LatentSpace:
    """Reads latents that are packed by patches and brought to the model's range by the VAE."""
    patch = value_in(values, "patch_size", list, PATCH)
    channels = value_in(values, "latent_channels", int, PACKED_CHANNELS) * prod(patch)
    levels = len(value_in(values, "block_out_channels", list, [1] * LEVELS))
    return LatentSpace(channels, 2 ** (levels - 1) * patch[0], 1.0)


def _widest_block(values: Values) -> int:
    decoder = values.get("decoder_block_out_channels") or ()
    return int(max((*values.get("block_out_channels", (512,)), *decoder)))


def _widest_level(values: Values) -> int:
    base = max(values.get("base_dim", 96), values.get("decoder_base_dim", 144) or 0)
    return int(base * max(values.get("dim_mult", (8,))))


def _last_slices(name: str, shape: Sequence[int]) -> int:
    """Counts one time slice of each kernel, and no layer along time."""
    if files.ALONG_TIME in name:
        return 0
    return prod(shape) // shape[2] if len(shape) == files.KERNEL_AXES else prod(shape)


def _each_half(*names: str) -> tuple[str, ...]:
    return tuple(name.format(half) for name in names for half in ("decoder", "encoder"))


MODULES = "katz_graph.models.vae.modules"
AUTOENCODER_KL = VaeKind(
    "AutoencoderKL",
    DEFAULT_LATENT_SPACE,
    space=_of_blocks,
    widest=_widest_block,
    names=_each_half("{}.conv_in.weight"),
    configure=files.of_blocks,
    build=f"{MODULES}:build",
    convert=f"{MODULES}:convert",
    encode=f"{MODULES}:encode",
    decode=f"{MODULES}:decode",
    scaled_by_network=True,
)
QWEN_IMAGE = VaeKind(
    "AutoencoderKLQwenImage",
    LatentSpace.of_statistics(8, *statistics.QWEN_IMAGE),
    space=_of_statistics(8, statistics.QWEN_IMAGE),
    widest=_widest_level,
    names=_each_half("{}.middle.0.residual.0.gamma", "{}.mid_block.resnets.0.norm1.gamma"),
    configure=files.of_flat_levels,
    build=f"{MODULES}:build_frame",
    convert=f"{MODULES}:convert_frame",
    encode=f"{MODULES}:encode_frame",
    decode=f"{MODULES}:decode_frame",
    loaded=_last_slices,
    colours="input_channels",
    overflows=True,
)
QWEN_IMAGE_21 = VaeKind(
    "AutoencoderKLQwenImage21",
    LatentSpace.of_statistics(16, *statistics.QWEN_IMAGE_21),
    space=_of_statistics(16, statistics.QWEN_IMAGE_21),
    widest=_widest_level,
    names=(
        "decoder.upsamples.0.upsamples.0.residual.0.gamma",
        "decoder.up_blocks.0.upsampler.resample.1.weight",
        "encoder.downsamples.0.downsamples.0.residual.0.gamma",
        "encoder.down_blocks.0.downsampler.resample.1.weight",
    ),
    configure=files.of_nested_levels,
    build=f"{MODULES}:build_frame",
    convert=f"{MODULES}:convert_frame",
    encode=f"{MODULES}:encode_frame",
    decode=f"{MODULES}:decode_frame",
    loaded=_last_slices,
    usual_colours=4,
    overflows=True,
)
FLUX2 = VaeKind(
    "AutoencoderKLFlux2",
    LatentSpace(PACKED_CHANNELS * prod(PATCH), 16, 1.0),
    space=_packed,
    widest=_widest_block,
    names=("bn.running_mean",),
    configure=files.of_packed,
    build=f"{MODULES}:build_packed",
    convert=f"{MODULES}:convert_packed",
    encode=f"{MODULES}:encode_packed",
    decode=f"{MODULES}:decode_packed",
)
KINDS = (FLUX2, QWEN_IMAGE_21, QWEN_IMAGE, AUTOENCODER_KL)
"""All kinds. Files of one also have the names of later ones."""


def kind_named(class_name: str | None) -> VaeKind | None:
    """Returns the kind with this diffusers class; None for other classes."""
    return next((kind for kind in KINDS if kind.class_name == class_name), None)


def kind_of(vae: Component) -> VaeKind:
    """Returns the kind of a VAE. Raises InputError for an unsupported class."""
    kind = kind_named(config(vae).get("_class_name"))
    if kind is None:
        expect_class(vae, *(kind.class_name for kind in reversed(KINDS)))
        raise AssertionError  # `expect_class` raises for a class of no kind
    return kind


def kind_of_module(module: Any) -> VaeKind:
    """Returns the kind that a loaded VAE is computed as."""
    kind = kind_named(type(module).__name__)
    assert kind is not None
    return kind


@lru_cache(maxsize=256)
def space_of(vae: Component) -> LatentSpace:
    """Returns the space of a VAE's latents. Raises InputError for an unsupported VAE."""
    kind = kind_of(vae)
    try:
        return kind.space(config(vae))
    except ValueError as problem:
        raise InputError(f"{vae.folder}: config.json: {problem}") from None


def latent_space(vae: VaeRecipe) -> LatentSpace:
    """Returns the space of a VAE's latents. Raises InputError for an unsupported VAE."""
    return space_of(vae.vae)


def cell_side(channels: int) -> int:
    """Returns the pixels per side of a cell of published latents with this many channels."""
    spaces = [kind.latent for kind in KINDS if kind.latent.channels == channels]
    return spaces[0].factor if spaces else DEFAULT_LATENT_SPACE.factor


def empty_in(space: LatentSpace, empty: Tensor) -> Tensor:
    """Returns an empty latent of a space, of the size of the picture that another space's empty
    latent [B, C, h, w] or [B, C, F, h, w] is for. Sides are rounded to whole cells.
    """
    batch, channels, *frames, height, width = empty.shape
    ratio = cell_side(channels) / space.factor
    cells = (max(1, round(side * ratio)) for side in (height, width))
    return empty.new_zeros(batch, space.channels, *frames, *cells)


def picture_channels(vae: VaeRecipe) -> int:
    """Counts the channels of a VAE's pictures: 3, or 4 with alpha."""
    kind = kind_of(vae.vae)
    return int(config(vae.vae).get(kind.colours, kind.usual_colours))


def overflows(vae: VaeRecipe) -> bool:
    """Returns whether a VAE is known to overflow in float16."""
    return bool(config(vae.vae).get("force_upcast", kind_of(vae.vae).overflows))
