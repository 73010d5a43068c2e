"""Edits and resizes batches of latents with their noise mask and batch index. Interpolates as torch
does, or channel vectors on the sphere. Must not know models.

A mask may have any size, since sampling resizes it, and a single mask applies to the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, FRAME_AXES, LatentSamples
from katz_graph.files.images import middle, resize
from katz_graph.picture.batch import each_frame, repeated, window

PARALLEL = 1 - 1e-5  # cosine above which slerp falls back to linear interpolation


def changed(latent: LatentSamples, samples: Tensor, mask: Tensor | None = None) -> LatentSamples:
    """Returns the latent with other samples, and with another mask if given."""
    return cast(
        LatentSamples,
        {**latent, "samples": samples} | ({} if mask is None else {"noise_mask": mask}),
    )


def mask_of(latent: LatentSamples) -> Tensor | None:
    """Returns the mask [1 or B, 1, H, W]: a single one, or one per sample."""
    mask = latent.get("noise_mask")
    if mask is None:
        return None
    mask = mask.reshape(-1, 1, *mask.shape[-2:])
    return mask if len(mask) == 1 else repeated(mask, len(latent["samples"]))


def indices_of(latent: LatentSamples) -> list[int] | None:
    """Returns each sample's noise index. Raises InputError unless each sample has one."""
    indices = latent.get("batch_index")
    if indices is not None and len(indices) != len(latent["samples"]):
        raise InputError(
            f"the latent's batch_index has {len(indices)} numbers, expected one for each of "
            f"{len(latent['samples'])} samples"
        )
    return None if indices is None else list(indices)


def spatial(latent: LatentSamples, change: Callable[[Tensor], Tensor]) -> LatentSamples:
    """Applies a rotation or flip of [..., H, W] to samples and mask."""
    mask = mask_of(latent)
    return changed(latent, change(latent["samples"]), None if mask is None else change(mask))


def pixel_mask(latent: LatentSamples) -> Tensor | None:
    """Resizes the mask to the pixel size of the samples."""
    mask = mask_of(latent)
    if mask is None:
        return None
    size = _pixels(latent)
    return (
        mask if mask.shape[-2:] == size else interpolate(mask.float(), size=size, mode="bilinear")
    )


def crop(latent: LatentSamples, x: int, y: int, width: int, height: int) -> LatentSamples:
    """Crops to the part of a window, in cells, inside the latent."""
    mask = pixel_mask(latent)
    if mask is not None:
        top, left, bottom, right = map(DEFAULT_LATENT_SPACE.pixels, (y, x, y + height, x + width))
        mask = mask[..., top:bottom, left:right]
    return changed(latent, latent["samples"][..., y : y + height, x : x + width], mask)


def scaled(
    latent: LatentSamples, width: int, height: int, method: str, cropped: str = "disabled"
) -> LatentSamples:
    """Resizes to a size in cells. The mask only changes with a crop, since it is resized when
    sampling.
    """
    mask = pixel_mask(latent) if cropped != "disabled" else None
    if mask is not None:
        wide, high = map(DEFAULT_LATENT_SPACE.pixels, (width, height))
        mask = resample(mask, wide, high, "bilinear", cropped)
    return changed(latent, resample(latent["samples"], width, height, method, cropped), mask)


def sized_like(latent: LatentSamples, samples: Tensor, method: str = "bilinear") -> LatentSamples:
    """Resizes the latent to `samples` with a centre crop. Raises InputError if channel counts
    differ.
    """
    check_channels(samples, latent["samples"])
    high, wide = samples.shape[-2:]
    return (
        latent
        if latent["samples"].shape[-2:] == (high, wide)
        else scaled(latent, wide, high, method, "center")
    )


def like(samples: Tensor, other: LatentSamples, method: str = "bilinear") -> Tensor:
    """Returns the other latent's samples in the size and batch length of `samples`."""
    return repeated(sized_like(other, samples, method)["samples"].to(samples), len(samples))


def check_channels(first: Tensor, second: Tensor) -> None:
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"the latents have {first.shape[1]} and {second.shape[1]} channels: they come from "
            "different kinds of VAE"
        )
    if first.shape[2:-2] != second.shape[2:-2]:
        one, other = (
            latent.shape[2] if latent.ndim == FRAME_AXES else "no" for latent in (first, second)
        )
        raise InputError(
            f"one latent has {one} frames, the other {other}: cut frames with LatentCut, or to a "
            "batch with LatentCutToBatch"
        )


def select(latent: LatentSamples, start: int, length: int) -> LatentSamples:
    """Selects samples of a batch and keeps their noise indices. A negative start counts from the
    end.
    """
    batch = len(latent["samples"])
    chosen = window(batch, start, length)
    indices = indices_of(latent) or list(range(batch))
    mask = mask_of(latent)
    part = changed(
        latent, latent["samples"][chosen], mask if mask is None or len(mask) == 1 else mask[chosen]
    )
    part["batch_index"] = indices[chosen]
    return part


def repeat(latent: LatentSamples, amount: int) -> LatentSamples:
    """Repeats the whole batch. If noise indices are set, each repetition gets new ones."""
    mask = mask_of(latent)
    if mask is not None and len(mask) > 1:
        mask = mask.repeat(amount, 1, 1, 1)
    samples = latent["samples"]
    longer = changed(latent, samples.repeat(amount, *[1] * (samples.ndim - 1)), mask)
    indices = indices_of(latent)
    if indices is not None:
        span = max(indices) - min(indices) + 1
        longer["batch_index"] = [index + turn * span for turn in range(amount) for index in indices]
    return longer


def joined(latents: Sequence[LatentSamples]) -> LatentSamples:
    """Joins latents of one size to a batch. If any has a mask, those without get a mask of ones;
    those without noise indices count from 0.
    """
    samples = torch.cat([latent["samples"].to(latents[0]["samples"]) for latent in latents])
    result = changed(latents[0], samples)
    result["batch_index"] = [
        index for latent in latents for index in indices_of(latent) or range(len(latent["samples"]))
    ]
    if any(mask_of(latent) is not None for latent in latents):
        result["noise_mask"] = torch.cat([_mask_or_ones(latent).to(samples) for latent in latents])
    return result


def _mask_or_ones(latent: LatentSamples) -> Tensor:
    batch, mask = len(latent["samples"]), pixel_mask(latent)
    return torch.ones(batch, 1, *_pixels(latent)) if mask is None else repeated(mask, batch)


def _pixels(latent: LatentSamples) -> tuple[int, int]:
    high, wide = map(DEFAULT_LATENT_SPACE.pixels, latent["samples"].shape[-2:])
    return high, wide


def rebatched(latents: Iterable[LatentSamples], size: int) -> Iterator[LatentSamples]:
    """Yields all samples in batches of `size`, with noise indices over the whole list. A sample of
    another size starts a new batch.
    """
    waiting: list[LatentSamples] = []
    for single in _numbered(latents):
        if waiting and (
            len(waiting) == size or single["samples"].shape != waiting[0]["samples"].shape
        ):
            yield joined(waiting)
            waiting = []
        waiting.append(single)
    if waiting:
        yield joined(waiting)


def _numbered(latents: Iterable[LatentSamples]) -> Iterator[LatentSamples]:
    """Yields single samples, numbered consecutively unless their latent has noise indices."""
    offset = 0
    for latent in latents:
        batch = len(latent["samples"])
        for position, index in enumerate(indices_of(latent) or range(offset, offset + batch)):
            single = select(latent, position, 1)
            single["batch_index"] = [index]
            yield single
        offset += batch


def resample(
    samples: Tensor, width: int, height: int, method: str, crop: str = "disabled"
) -> Tensor:
    """Resizes [B, C, H, W] to [B, C, height, width], and each of the frames of [B, C, F, H, W].
    Crop `center` first crops to the new aspect ratio. Method `bislerp` is defined below, others
    are torch's.
    """

    def resized(planes: Tensor) -> Tensor:
        if method != "bislerp":
            return resize(planes.movedim(1, -1), width, height, method, crop).movedim(-1, 1)
        if crop == "center":
            planes = middle(planes.movedim(1, -1), width, height).movedim(-1, 1)
        return bislerp(planes, width, height)

    return each_frame(samples, resized)


def bislerp(samples: Tensor, width: int, height: int) -> Tensor:
    """Resizes with bilinear weights, interpolating the direction of channel vectors [C] on the
    sphere and their length linearly.
    """
    return _along(_along(samples.float(), width, 3), height, 2).to(samples.dtype)


def _along(samples: Tensor, size: int, axis: int) -> Tensor:
    old = samples.shape[axis]
    position = ((torch.arange(size, device=samples.device) + 0.5) * (old / size) - 0.5).clamp(
        0, old - 1
    )
    before = position.floor().long()
    after = (before + 1).clamp(max=old - 1)
    weight = (position - before).reshape(
        [-1 if dimension == axis else 1 for dimension in range(samples.ndim)]
    )
    return slerp(samples.index_select(axis, before), samples.index_select(axis, after), weight)


def slerp(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Interpolates on the sphere over dimension 1 (Shoemake 1985), and lengths linearly. Mixes
    parallel and opposite vectors linearly.
    """
    length_first, length_second = (vector.norm(dim=1, keepdim=True) for vector in (first, second))
    unit_first = first / length_first.clamp(min=1e-30)
    unit_second = second / length_second.clamp(min=1e-30)
    cosine = (unit_first * unit_second).sum(dim=1, keepdim=True)
    angle = cosine.clamp(-PARALLEL, PARALLEL).acos()
    direction = (
        torch.sin((1 - weight) * angle) * unit_first + torch.sin(weight * angle) * unit_second
    ) / angle.sin()
    arc = direction * (length_first * (1 - weight) + length_second * weight)
    return torch.where(cosine.abs() > PARALLEL, first * (1 - weight) + second * weight, arc)


def fitted(latent: Tensor, like: Tensor) -> Tensor:
    """Resizes a latent to the size of another: bilinear, with a centre crop, repeated to its batch
    length.
    """
    latent = latent.to(like)
    if latent.shape[-2:] != like.shape[-2:]:
        latent = resample(latent, like.shape[-1], like.shape[-2], "bilinear", "center")
    return repeated(latent, len(like))
