"""Makes stand-ins for VAEs that several families share."""

from __future__ import annotations

from katz_graph.models.families.shared.stand_ins import Shapes, Tensors, drawn


def qwen_image_vae(channels: int = 3, base: int = 8) -> Tensors:
    """Returns the weights of Qwen-Image's VAE in the layout of Wan 2.1's. `channels`: of pictures;
    `base`: width of the outermost level.
    """
    return drawn(_wan_vae(channels, base), 9)


def qwen_image_21_vae(base: int = 8) -> Tensors:
    """Returns the weights of Qwen-Image 2.1's VAE in the layout of Wan 2.2's, with one frame."""
    return drawn(_wan22_vae(base), 10)


def _wan22_vae(base: int) -> Shapes:
    latent, channels, widths = 64, 4, (base, 2 * base, 4 * base, 8 * base, 8 * base)
    yield from _convolution("encoder.conv1", base, channels, 1, 3)
    yield from _nested("encoder.downsamples", "downsamples", widths, base, 2, (1, 2, 3))
    yield from _middle("encoder", 8 * base, 1)
    yield "encoder.head.0.gamma", (8 * base, 1, 1, 1)
    yield from _convolution("encoder.head.2", 2 * latent, 8 * base, 1, 3)
    yield from _convolution("conv1", 2 * latent, 2 * latent, 1)
    yield from _convolution("conv2", latent, latent, 1)
    wide = 16 * base
    yield from _convolution("decoder.conv1", wide, latent, 1, 3)
    yield from _middle("decoder", wide, 1)
    levels = (wide, wide, wide // 2, wide // 4, wide // 8)
    yield from _nested("decoder.upsamples", "upsamples", levels, wide, 3, (0, 1, 2), 2)
    yield "decoder.head.0.gamma", (2 * base, 1, 1, 1)
    yield from _convolution("decoder.head.2", channels, 2 * base, 1, 3)


def _nested(
    place: str,
    name: str,
    widths: tuple[int, ...],
    width: int,
    layers: int,
    timed: tuple[int, ...],
    more: int = 1,
) -> Shapes:
    """Yields levels of residual layers, with a change of resolution behind each but the last.
    `timed`: levels with a layer along time, which has `more` times the channels.
    """
    for level, out in enumerate(widths):
        inside = f"{place}.{level}.{name}"
        for number in range(layers):
            yield from _residual(f"{inside}.{number}", out, width, 1)
            width = out
        if level < len(widths) - 1:
            yield from _flat(f"{inside}.{layers}.resample.1", width, width)
        if level in timed:
            yield from _convolution(f"{inside}.{layers}.time_conv", more * width, width, 1, 1)


def _wan_vae(channels: int, base: int) -> Shapes:
    latent, deep = 16, 4 * base
    yield from _convolution("encoder.conv1", base, channels, 3)
    number, width = 0, base
    for level, out in enumerate((base, 2 * base, 4 * base, 4 * base)):
        for _ in range(2):
            yield from _residual(f"encoder.downsamples.{number}", out, width)
            number, width = number + 1, out
        if level < 3:
            place = f"encoder.downsamples.{number}"
            yield from _flat(f"{place}.resample.1", width, width)
            if level:
                yield from _convolution(f"{place}.time_conv", width, width, 3, 1)
            number += 1
    yield from _middle("encoder", deep)
    yield "encoder.head.0.gamma", (deep, 1, 1, 1)
    yield from _convolution("encoder.head.2", 2 * latent, deep, 3)
    yield from _convolution("conv1", 2 * latent, 2 * latent, 1)
    yield from _convolution("conv2", latent, latent, 1)
    yield from _convolution("decoder.conv1", deep, latent, 3)
    yield from _middle("decoder", deep)
    number, width = 0, deep
    for level, out in enumerate((4 * base, 4 * base, 2 * base, base)):
        for _ in range(3):
            yield from _residual(f"decoder.upsamples.{number}", out, width)
            number, width = number + 1, out
        if level < 3:
            place = f"decoder.upsamples.{number}"
            yield from _flat(f"{place}.resample.1", width // 2, width)
            if level < 2:
                yield from _convolution(f"{place}.time_conv", 2 * width, width, 3, 1)
            number, width = number + 1, width // 2
    yield "decoder.head.0.gamma", (base, 1, 1, 1)
    yield from _convolution("decoder.head.2", channels, base, 3)


def _residual(place: str, out: int, into: int, time: int = 3) -> Shapes:
    yield f"{place}.residual.0.gamma", (into, 1, 1, 1)
    yield from _convolution(f"{place}.residual.2", out, into, time, 3)
    yield f"{place}.residual.3.gamma", (out, 1, 1, 1)
    yield from _convolution(f"{place}.residual.6", out, out, time, 3)
    if out != into:
        yield from _convolution(f"{place}.shortcut", out, into, 1)


def _middle(half: str, width: int, time: int = 3) -> Shapes:
    for number in (0, 2):
        yield from _residual(f"{half}.middle.{number}", width, width, time)
    yield f"{half}.middle.1.norm.gamma", (width, 1, 1)
    yield from _flat(f"{half}.middle.1.to_qkv", 3 * width, width, 1)
    yield from _flat(f"{half}.middle.1.proj", width, width, 1)


def _convolution(place: str, out: int, into: int, time: int, side: int | None = None) -> Shapes:
    """Yields a convolution over frames, rows and columns."""
    cells = time if side is None else side
    yield f"{place}.weight", (out, into, time, cells, cells)
    yield f"{place}.bias", (out,)


def _flat(place: str, out: int, into: int, side: int = 3) -> Shapes:
    yield f"{place}.weight", (out, into, side, side)
    yield f"{place}.bias", (out,)
