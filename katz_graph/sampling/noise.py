"""Draws noise, always in float32 on the CPU from the seed, so that a picture does not depend on the
device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
import torchsde
from torch import Tensor

from katz_graph.core.errors import InputError
from katz_graph.host.transfer import to_device

PATH_DIGITS = 6  # decimals of a Brownian path's noise levels; torchsde's default


def seeded(seed: int) -> torch.Generator:
    """Makes a CPU generator; seeds wrap at 2^64."""
    return torch.Generator("cpu").manual_seed(seed % 2**64)


def initial_noise(
    shape: Sequence[int], seed: int, batch_index: Sequence[int] | None = None
) -> Tensor:
    """Draws unit noise [B, C, h, w].

    With a `batch_index` [B], draws samples singly, and sample i is draw number batch_index[i]. A
    latent taken from a batch therefore keeps its noise, and equal indices share noise. Raises
    InputError unless there are B indices of at least 0.
    """
    generator = seeded(seed)
    if batch_index is None:
        return torch.randn(tuple(shape), generator=generator)
    if len(batch_index) != shape[0] or min(batch_index) < 0:
        raise InputError(
            f"latent: batch_index {list(batch_index)} does not fit a batch of {shape[0]}"
        )
    drawn = [torch.randn((1, *shape[1:]), generator=generator) for _ in range(max(batch_index) + 1)]
    return torch.cat([drawn[index] for index in batch_index])


class AncestralNoise:
    """Draws the noise between an ancestral sampler's steps, from one generator per run, seeded with
    seed + 1.
    """

    def __init__(self, shape: Sequence[int], seed: int, device: torch.device | str) -> None:
        self._shape, self._device = tuple(shape), device
        self._generator = seeded(seed + 1)

    def __call__(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        return to_device(torch.randn(self._shape, generator=self._generator), self._device)


class BrownianNoise:
    """Draws the noise of a stochastic sampler: increments of one Brownian path in sigma, divided by
    the root of their length.

    The noise depends on the seed and the two levels, but not on the order of calls or on other
    steps (Kidger et al. 2021, "Efficient and Accurate Gradients for Neural SDEs", section 4). The
    path runs upwards from the smallest positive to the largest sigma; a step follows it downwards.
    """

    def __init__(
        self, shape: Sequence[int], seed: int, sigmas: Tensor, device: torch.device | str
    ) -> None:
        self._shape = tuple(shape)
        self._seed = seed
        self._levels = sigmas[sigmas > 0]
        self._device = device

    @cached_property
    def _path(self) -> torchsde.BrownianTree:
        """Makes the path on first use, because a run of one step to 0 has no interval."""
        low, high = self._levels.min(), self._levels.max()
        return torchsde.BrownianTree(
            low, torch.zeros(self._shape), high, entropy=self._seed % 2**64, tol=10**-PATH_DIGITS
        )

    def __call__(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        # The path rounds its ends, and would warn about levels beyond them.
        low, high = (
            round(float(level), PATH_DIGITS) for level in (self._levels.min(), self._levels.max())
        )
        walked: Tensor = self._path(max(float(sigma_next), low), min(float(sigma), high))
        return to_device(-walked / (sigma - sigma_next).sqrt(), self._device)
