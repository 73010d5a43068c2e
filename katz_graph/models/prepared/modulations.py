"""Computes the modulation vectors of transformers' blocks from one activated embedding.

Blocks scale, shift and gate their tokens by vectors, which are products of an embedding of timestep
and text. A stage activates the embedding once for its blocks. Each block computes one product, of a
size that does not depend on the stage's range of blocks: with one product for all of them, images
would depend on the placement, because libraries choose the order of sums by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from katz_graph.models.projections import FusedProjections


@dataclass(frozen=True, slots=True)
class Activated:
    """Holds SiLU of an embedding [B, E]."""

    values: Tensor


class ModulatedBlock:
    """A prepared block whose norms are modulated by vectors of an embedding."""

    modulations: FusedProjections | None = None
    activated = True
    """Whether vectors are products of SiLU of the embedding, not of the embedding itself."""

    def modulated(self) -> Sequence[Any]:
        """Returns the norms with a `linear` layer for their vectors."""
        raise NotImplementedError

    def fuse_modulations(self) -> None:
        """Moves the weights of the norms' layers into one storage."""
        self.modulations = FusedProjections.of(*(norm.linear for norm in self.modulated()))

    def vectors(self, embedding: Tensor | Activated) -> Sequence[Tensor]:
        """Returns the vectors [B, n] of each norm for an embedding [B, E]."""
        if isinstance(embedding, Activated):
            values = embedding.values
        else:
            values = F.silu(embedding) if self.activated else embedding
        if self.modulations is not None:
            return self.modulations(values)
        return [norm.linear(values) for norm in self.modulated()]


def activate(blocks: Sequence[Any], embedding: Tensor) -> list[Any]:
    """Returns the embedding [B, E] for each block, activated for blocks that take that."""
    takes = [isinstance(block, ModulatedBlock) and block.activated for block in blocks]
    shared = Activated(F.silu(embedding)) if any(takes) else None
    return [shared if one else embedding for one in takes]
