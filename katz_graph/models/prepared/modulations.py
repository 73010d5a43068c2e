"""Computes the modulation vectors of a range of blocks by one product.

Blocks of transformers scale, shift and gate their tokens by vectors, which are products of one
embedding of timestep and text. The weights of all blocks lie in one storage, so that a stage
computes all vectors of its blocks before the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from katz_graph.models.projections import FusedProjections


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Names the rows of a block in the fused weights of all blocks, by layer."""

    fused: FusedProjections
    first: int
    widths: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.first + sum(self.widths)


@dataclass(frozen=True, slots=True)
class Vectors:
    """Holds the vectors [B, n] of a block, in place of the embedding."""

    values: Tensor


class ModulatedBlock:
    """A prepared block whose norms are modulated by vectors of an embedding."""

    rows: Rows | None = None
    activated = True
    """Whether vectors are products of SiLU of the embedding, not of the embedding itself."""

    def modulated(self) -> Sequence[Any]:
        """Returns the norms with a `linear` layer for their vectors."""
        raise NotImplementedError

    def vectors(self, embedding: Tensor | Vectors) -> Sequence[Tensor]:
        """Returns the vectors [B, n] of each norm for an embedding [B, E]."""
        if self.rows is None:
            return [norm.linear(norm.silu(embedding)) for norm in self.modulated()]
        given = embedding if isinstance(embedding, Vectors) else modulated([self], embedding)[0]
        parts: Sequence[Tensor] = given.values.split_with_sizes(self.rows.widths, dim=1)
        return parts


def fuse_modulations(module: nn.Module, filled: bool) -> None:
    """Moves the weights of all blocks' modulations into one storage, see `FusedProjections.of`. In
    FLUX.1 they are a quarter of all weights.
    """
    blocks = [one for one in module.modules() if isinstance(one, ModulatedBlock)]
    layers = [[norm.linear for norm in block.modulated()] for block in blocks]
    if not blocks:
        return
    fused, first = (
        FusedProjections.of(*(layer for own in layers for layer in own), filled=filled),
        0,
    )
    for block, own in zip(blocks, layers, strict=True):
        block.rows = Rows(fused, first, tuple(layer.out_features for layer in own))
        first = block.rows.end


def modulated(blocks: Sequence[Any], embedding: Tensor) -> list[Any]:
    """Returns the last input of each block: its vectors if its weights are fused, otherwise the
    embedding [B, E].
    """
    found = [getattr(block, "rows", None) for block in blocks]
    fused = [rows for rows in found if rows is not None]
    if not fused:
        return [embedding] * len(found)
    first, end = fused[0].first, fused[-1].end
    weight, bias = fused[0].fused.weight, fused[0].fused.bias
    part = None if bias is None else bias[first:end]
    activated = any(block.activated for block in blocks if isinstance(block, ModulatedBlock))
    given = F.silu(embedding) if activated else embedding
    made = F.linear(given, weight[first:end], part)
    return [
        embedding if rows is None else Vectors(made[:, rows.first - first : rows.end - first])
        for rows in found
    ]
