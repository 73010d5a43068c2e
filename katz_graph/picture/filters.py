"""Blurs, sharpens and blends pictures [B, H, W, C], and detects edges (Canny 1986) with the
thresholds and steps of kornia.filters.canny, which ComfyUI's Canny node calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

OVERSHOOT = 10.0  # multiple of (image - blurred) that a sharpening of 1 adds
GREY = (0.299, 0.587, 0.114)
# (down, right) in steps of 45 degrees
NEIGHBOURS = ((0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1), (-1, 0), (-1, 1))


def blur(image: Tensor, radius: int, sigma: float) -> Tensor:
    """Blurs with a Gaussian kernel of 2·radius + 1 pixels; sigma is in units of the radius, as in
    ComfyUI. Mirrors the border.
    """
    positions = torch.linspace(-1, 1, 2 * radius + 1, dtype=image.dtype, device=image.device)
    weights = torch.exp(-positions.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    planes = image.movedim(-1, 1)
    channels = planes.shape[1]
    # mirroring needs a picture larger than the radius
    mode = "reflect" if radius < min(planes.shape[2:]) else "replicate"
    padded = F.pad(planes, (radius,) * 4, mode=mode)
    down = F.conv2d(padded, weights.view(1, 1, -1, 1).repeat(channels, 1, 1, 1), groups=channels)
    return F.conv2d(
        down, weights.view(1, 1, 1, -1).repeat(channels, 1, 1, 1), groups=channels
    ).movedim(1, -1)


def sharpen(image: Tensor, radius: int, sigma: float, alpha: float) -> Tensor:
    """Sharpens by unsharp masking: image + 10·alpha·(image - blurred), clamped to 0..1."""
    return (image + OVERSHOOT * alpha * (image - blur(image, radius, sigma))).clamp(0, 1)


def _overlay(below: Tensor, above: Tensor) -> Tensor:
    return torch.where(below <= 0.5, 2 * below * above, 1 - 2 * (1 - below) * (1 - above))


def _soft_light(below: Tensor, above: Tensor) -> Tensor:
    """Blends by soft light (W3C Compositing and Blending, §9.1.9)."""
    root = torch.where(
        below <= 0.25, ((16 * below - 12) * below + 4) * below, below.clamp(min=0).sqrt()
    )
    return torch.where(
        above <= 0.5,
        below - (1 - 2 * above) * below * (1 - below),
        below + (2 * above - 1) * (root - below),
    )


BLENDS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "normal": lambda below, above: above,
    "multiply": lambda below, above: below * above,
    "screen": lambda below, above: 1 - (1 - below) * (1 - above),
    "overlay": _overlay,
    "soft_light": _soft_light,
    "difference": lambda below, above: below - above,  # signed, as in ComfyUI
}


def canny(image: Tensor, low: float = 0.4, high: float = 0.8) -> Tensor:
    """Detects edges [B, H, W] of 0 and 1 in an image [B, H, W, C] in 0..1 (C of 1, 3 or 4).

    `low` and `high` are absolute thresholds on the magnitude of the unnormalised Sobel gradient
    (about 2.7 for a sharp step from black to white). Edges are pixels above `high`, and connected
    pixels above `low`.
    """
    if not low <= high:
        raise ValueError(
            f"canny: the low threshold ({low}) must not be above the high one ({high})"
        )
    blurred = blur(_grey(image), radius=2, sigma=0.5)  # 5×5 pixels, a sigma of one
    down, right = _gradient(blurred.movedim(-1, 1))
    length = (right.square() + down.square() + 1e-6).sqrt()
    ridge = length * _is_ridge(length, torch.atan2(down, right))
    return _follow(strong=ridge > high, weak=ridge > low)[:, 0].to(image.dtype)


def _grey(image: Tensor) -> Tensor:
    """Converts to grey [B, H, W, 1]; ignores transparency."""
    if image.shape[-1] == 1:
        return image
    weights = torch.tensor(GREY, dtype=image.dtype, device=image.device).view(1, 3, 1, 1)
    return (image.movedim(-1, 1)[:, :3] * weights).sum(dim=1, keepdim=True).movedim(1, -1)


def _gradient(grey: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the Sobel derivatives (down, right) with a replicated border."""
    right = torch.tensor(
        [[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]], dtype=grey.dtype, device=grey.device
    )
    padded = F.pad(grey, (1, 1, 1, 1), mode="replicate")
    both = F.conv2d(padded, torch.stack([right.T, right]).unsqueeze(1))
    return both[:, :1], both[:, 1:]


def _is_ridge(length: Tensor, angle: Tensor) -> Tensor:
    """Marks pixels whose gradient exceeds that of both neighbours along its direction (rounded to
    45 degrees).
    """
    height, width = length.shape[2:]
    padded = F.pad(length, (1, 1, 1, 1))
    drops = torch.cat(
        [
            length - padded[:, :, 1 + y : 1 + y + height, 1 + x : 1 + x + width]
            for y, x in NEIGHBOURS
        ],
        dim=1,
    )
    ahead = torch.round(angle * (4 / torch.pi)).long() % 8
    return _beats(drops, ahead) & _beats(drops, (ahead + 4) % 8)


def _beats(drops: Tensor, direction: Tensor) -> Tensor:
    """Marks pixels that exceed their neighbour. A tie suffices to the right and downwards, so one
    of two equal pixels remains.
    """
    drop = drops.gather(1, direction)
    return (drop > 0) | ((drop == 0) & ((direction == 0) | (direction == 2)))


def _follow(strong: Tensor, weak: Tensor) -> Tensor:
    """Grows strong pixels through connected weak ones (hysteresis)."""
    edges = strong
    while True:
        grown = weak & (F.max_pool2d(edges.float(), 3, 1, 1) > 0) | strong
        if torch.equal(grown, edges):
            return edges
        edges = grown


def near_bright(depth: Tensor) -> Tensor:
    """Converts distances [B, H, W, C], averaged over the channels, to grey pictures [B, H, W, 3]:
    the nearest point of each is white, the farthest black. A picture of one distance is black.
    """
    distances = depth.mean(dim=-1, keepdim=True)
    near, far = distances.amin(dim=(1, 2), keepdim=True), distances.amax(dim=(1, 2), keepdim=True)
    span = far - near
    bright = (far - distances) / torch.where(span > 0, span, 1.0)
    return bright.expand(-1, -1, -1, 3).contiguous()


def unit_normals(picture: Tensor) -> Tensor:
    """Scales the vectors that colours [B, H, W, 3] in 0..1 represent, 0.5 for 0, to length 1."""
    return F.normalize(picture[..., :3] * 2 - 1, dim=-1) / 2 + 0.5


def as_srgb(linear: Tensor) -> Tensor:
    """Converts linear light in 0..1 to sRGB (IEC 61966-2-1)."""
    light = linear.clamp(0, 1)
    return torch.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
