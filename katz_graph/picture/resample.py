"""Resizes latents: torch's interpolations, and interpolation of channel vectors on the sphere."""

from __future__ import annotations

import torch
from torch import Tensor

from katz_graph.files.images import middle, resize

PARALLEL = 1 - 1e-5  # cosine from which on an arc is no different from a chord


def resample(samples: Tensor, width: int, height: int, method: str, crop: str = "disabled") -> Tensor:
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
    position = ((torch.arange(size, device=samples.device) + 0.5) * (old / size) - 0.5).clamp(0, old - 1)
    before = position.floor().long()
    after = (before + 1).clamp(max=old - 1)
    weight = (position - before).reshape([-1 if dimension == axis else 1 for dimension in range(samples.ndim)])
    return slerp(samples.index_select(axis, before), samples.index_select(axis, after), weight)


def slerp(first: Tensor, second: Tensor, weight: Tensor) -> Tensor:
    """Interpolates on the sphere over dimension 1 (Shoemake 1985), lengths linearly; parallel and
    opposite vectors are mixed linearly.
    """
    length_first, length_second = (vector.norm(dim=1, keepdim=True) for vector in (first, second))
    unit_first, unit_second = first / length_first.clamp(min=1e-30), second / length_second.clamp(min=1e-30)
    cosine = (unit_first * unit_second).sum(dim=1, keepdim=True)
    angle = cosine.clamp(-PARALLEL, PARALLEL).acos()
    direction = (torch.sin((1 - weight) * angle) * unit_first + torch.sin(weight * angle) * unit_second) / angle.sin()
    arc = direction * (length_first * (1 - weight) + length_second * weight)
    return torch.where(cosine.abs() > PARALLEL, first * (1 - weight) + second * weight, arc)
