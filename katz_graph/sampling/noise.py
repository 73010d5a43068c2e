"""Where noise comes from: always drawn in float32 on the CPU from the seed, so that a picture does not depend on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katz_graph.errors import InputError


def seeded(seed: int) -> torch.Generator:
    """A CPU generator; seeds wrap at 2^64."""
    return torch.Generator("cpu").manual_seed(seed % 2**64)


def initial_noise(shape: Sequence[int], seed: int, batch_index: Sequence[int] | None = None) -> Tensor:
    """Unit noise [B, C, h, w].

    With a `batch_index` [B], sample i is the batch_index[i]-th of single samples drawn one after the other: a latent taken out of a batch
    keeps its noise. Equal indices share it. Raises InputError if there are not B indices.
    """
    generator = seeded(seed)
    if batch_index is None:
        return torch.randn(tuple(shape), generator=generator)
    if len(batch_index) != shape[0] or min(batch_index) < 0:
        raise InputError(f"latent: batch_index {list(batch_index)} does not fit a batch of {shape[0]}")
    drawn = [torch.randn((1, *shape[1:]), generator=generator) for _ in range(max(batch_index) + 1)]
    return torch.cat([drawn[index] for index in batch_index])


class AncestralNoise:
    """Noise that an ancestral sampler adds between steps: one generator for the whole run, seeded with seed + 1."""

    def __init__(self, shape: Sequence[int], seed: int, device: torch.device | str) -> None:
        self._shape, self._device = tuple(shape), device
        self._generator = seeded(seed + 1)

    def __call__(self, sigma: Tensor, sigma_next: Tensor) -> Tensor:
        return torch.randn(self._shape, generator=self._generator).to(self._device)
