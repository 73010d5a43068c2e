"""Edits batches of latents, with the noise mask and the batch index that travel with them, and
resizes them: by torch's interpolations, and by that of channel vectors on the sphere. Must not know
models.

A mask may have any size (it is fitted to the latent when sampling), and one mask stands for the
whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from katz_graph.core.errors import InputError
from katz_graph.core.latent_space import DEFAULT_LATENT_SPACE, LatentSamples
from katz_graph.files.images import middle, resize
from katz_graph.picture.batch import repeated, window

PARALLEL = 1 - 1e-5  # cosine from which on an arc is no different from a chord


def changed(latent: LatentSamples, samples: Tensor, mask: Tensor | None = None) -> LatentSamples:
    """Returns the latent with other samples, and another mask when one is given."""
    return cast(
        LatentSamples,
        {**latent, "samples": samples} | ({} if mask is None else {"noise_mask": mask}),
    )


def mask_of(latent: LatentSamples) -> Tensor | None:
    """Returns the mask [1 or B, 1, H, W], one for each sample unless there is only one."""
    mask = latent.get("noise_mask")
    if mask is None:
        return None
    mask = mask.reshape(-1, 1, *mask.shape[-2:])
    return mask if len(mask) == 1 else repeated(mask, len(latent["samples"]))


def indices_of(latent: LatentSamples) -> list[int] | None:
    """Returns each sample's draw of the seed; InputError when there is not one for each."""
    indices = latent.get("batch_index")
    if indices is not None and len(indices) != len(latent["samples"]):
        raise InputError(
            f"the latent's batch_index has {len(indices)} numbers, expected one for each of "
            f"{len(latent['samples'])} samples"
        )
    return None if indices is None else list(indices)


def spatial(latent: LatentSamples, change: Callable[[Tensor], Tensor]) -> LatentSamples:
    """Turns or flips [..., H, W], samples and mask alike."""
    mask = mask_of(latent)
    return changed(latent, change(latent["samples"]), None if mask is None else change(mask))


def pixel_mask(latent: LatentSamples) -> Tensor | None:
    """Resizes the mask to as many pixels as the cells of the samples stand for."""
    mask = mask_of(latent)
    if mask is None:
        return None
    size = _pixels(latent)
    return (
        mask if mask.shape[-2:] == size else interpolate(mask.float(), size=size, mode="bilinear")
    )


def crop(latent: LatentSamples, x: int, y: int, width: int, height: int) -> LatentSamples:
    """Crops to a window in cells, as far as it lies inside."""
    mask = pixel_mask(latent)
    if mask is not None:
        top, left, bottom, right = map(DEFAULT_LATENT_SPACE.pixels, (y, x, y + height, x + width))
        mask = mask[..., top:bottom, left:right]
    return changed(latent, latent["samples"][..., y : y + height, x : x + width], mask)


def scaled(
    latent: LatentSamples, width: int, height: int, method: str, cropped: str = "disabled"
) -> LatentSamples:
    """Resizes, in cells. Without a crop the mask stays as it is: it means the same places."""
    mask = pixel_mask(latent) if cropped != "disabled" else None
    if mask is not None:
        wide, high = map(DEFAULT_LATENT_SPACE.pixels, (width, height))
        mask = resample(mask, wide, high, "bilinear", cropped)
    return changed(latent, resample(latent["samples"], width, height, method, cropped), mask)


def sized_like(latent: LatentSamples, samples: Tensor, method: str = "bilinear") -> LatentSamples:
    """Resizes the latent to `samples`, cropped around the centre. InputError when it has another
    number of channels.
    """
    check_channels(samples, latent["samples"])
    high, wide = samples.shape[-2:]
    return (
        latent
        if latent["samples"].shape[-2:] == (high, wide)
        else scaled(latent, wide, high, method, "center")
    )


def like(samples: Tensor, other: LatentSamples, method: str = "bilinear") -> Tensor:
    """Returns the other's samples in the size and batch of `samples`."""
    return repeated(sized_like(other, samples, method)["samples"].to(samples), len(samples))


def check_channels(first: Tensor, second: Tensor) -> None:
    if first.shape[1] != second.shape[1]:
        raise InputError(
            f"the latents have {first.shape[1]} and {second.shape[1]} channels: they come from "
            "different kinds of VAE"
        )


def select(latent: LatentSamples, start: int, length: int) -> LatentSamples:
    """Selects some samples of a batch, with the draws of the seed that they had in it. A negative
    start counts from the end.
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
    """Repeats the whole batch. Where draws of the seed are numbered, each repetition gets new
    numbers.
    """
    mask = mask_of(latent)
    if mask is not None and len(mask) > 1:
        mask = mask.repeat(amount, 1, 1, 1)
    longer = changed(latent, latent["samples"].repeat(amount, 1, 1, 1), mask)
    indices = indices_of(latent)
    if indices is not None:
        span = max(indices) - min(indices) + 1
        longer["batch_index"] = [index + turn * span for turn in range(amount) for index in indices]
    return longer


def joined(latents: Sequence[LatentSamples]) -> LatentSamples:
    """Joins several latents of one size to one batch. Where one has a mask, those without are
    repainted whole; without numbers they count from 0.
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
    """Yields all samples in batches of `size`, numbered as in the whole list; a sample of another
    width or height begins a new batch.
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
    """Yields each sample by itself, numbered through unless its latent brings numbers."""
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
    """Resizes [B, C, H, W] to [B, C, height, width]; `center` crops to the new proportions first;
    `bislerp` as below, others as torch has them.
    """
    if method != "bislerp":
        return resize(samples.movedim(1, -1), width, height, method, crop).movedim(-1, 1)
    if crop == "center":
        samples = middle(samples.movedim(1, -1), width, height).movedim(-1, 1)
    return bislerp(samples, width, height)


def bislerp(samples: Tensor, width: int, height: int) -> Tensor:
    """Resizes with bilinear weights, but between neighbours the direction of the channel vector [C]
    moves on the sphere and its length linearly.
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
    """Interpolates on the sphere over dimension 1 (Shoemake 1985), lengths linearly; parallel and
    opposite vectors are mixed linearly.
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
    """Resizes a latent to another one's size: bilinear, cropped around the centre, repeated to its
    batch.
    """
    latent = latent.to(like)
    if latent.shape[-2:] != like.shape[-2:]:
        latent = resample(latent, like.shape[-1], like.shape[-2], "bilinear", "center")
    return repeated(latent, len(like))
