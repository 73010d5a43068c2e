"""Computes a transformer layer for some tokens only, and takes the other tokens from a template
(InstGenIE, section 4).

A layer's queries and feed-forward are those of the active tokens. Its keys and values are those of
all tokens, projected from the layer's input. So one tensor per layer suffices: its output for the
template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from katz_graph.ir.values import CachedActivations


@dataclass(frozen=True, slots=True, eq=False)
class Active:
    """Holds the active tokens of one layer."""

    positions: Tensor  # [B, A] int64, from 0 to N; a position may be repeated
    rows: Tensor  # [B · A] int64: the positions among the tokens of all rows
    template: Tensor  # [B, N, D]: the layer's output for the template

    def taken(self, x: Tensor) -> Tensor:
        """Returns the active tokens [B, A, D] of x [B, N, D]."""
        batch, active = self.positions.shape
        return x.reshape(-1, x.shape[-1]).index_select(0, self.rows).view(batch, active, -1)

    def placed(self, x: Tensor) -> Tensor:
        """Returns the template's output [B, N, D] with x [B, A, D] at the active tokens."""
        whole = self.template.to(x.dtype, copy=True, memory_format=torch.contiguous_format)
        whole.view(-1, x.shape[-1]).index_copy_(0, self.rows, x.flatten(0, 1))
        return whole


class ActiveBlock:
    """A prepared block of a transformer whose `forward` takes `active`, the picture tokens to
    compute, and returns all of them. Text tokens are always computed.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Layers:
    """Holds what the layers of a call read from a template, and collects what they compute."""

    activations: CachedActivations | None = None
    collected: dict[str, Tensor] | None = None  # by layer: outputs [B, N, D]
    _rows: dict[int, Tensor] = field(default_factory=dict)  # by N: `Active.rows`

    def active(self, name: str, tokens: int) -> Active | None:
        """Returns the active tokens of a layer with this many tokens; None if it computes all."""
        if self.activations is None or name not in self.activations.outputs:
            return None
        positions, template = self.activations.positions[tokens], self.activations.outputs[name]
        if tokens not in self._rows:
            first = torch.arange(0, len(template) * tokens, tokens, device=positions.device)
            self._rows[tokens] = (positions + first[:, None]).flatten()
        return Active(positions, self._rows[tokens], template)

    def collect(self, name: str, output: Tensor) -> None:
        if self.collected is not None:
            self.collected[name] = output


def layers_of(given: Mapping[str, object]) -> Layers | None:
    """Returns the layers' inputs and outputs of a stage's call; None if all layers compute all
    tokens and none collects.
    """
    activations, collects = given.get("activations"), given.get("collects", False)
    if activations is None and not collects:
        return None
    assert activations is None or isinstance(activations, CachedActivations)
    return Layers(activations, {} if collects else None)


def collected(layers: Layers | None) -> tuple[dict[str, Tensor], ...]:
    """Returns the last output of a stage's call that collects, else nothing."""
    return () if layers is None or layers.collected is None else (layers.collected,)


BUCKET = 64  # numbers of active tokens are multiples of it, so that recorded calls recur
BUCKETS = 16  # least number of multiples up to all tokens of a level; smaller levels round less
MARGIN = 2  # cells: with 0, small edits differ too much from full computation (`katz bench edit`)
# σ / α, see `Path.relative`: at higher noise levels layers compute all tokens, because what they
# compute outside the mask depends on the template's noise
MAX_NOISE = 15.0


def active_positions(
    mask: Tensor, side: int, levels: int, margin: int = 0, bucket: int = BUCKET
) -> dict[int, Tensor]:
    """Returns the positions [B, A] of the active tokens by number of tokens of each level: the mask
    [B, 1, h, w] above 0, grown by `margin` cells and max-pooled to the level.

    side: cells of a token at the first level; each further level halves the sides, rounded up. A
    row with fewer active tokens repeats its last one, up to the next multiple of `bucket`, or of a
    sixteenth of the level's tokens if that is less.
    """
    grown = max_pool2d((mask > 0).float(), 2 * margin + 1, stride=1, padding=margin)
    grid = _pooled(grown, side)
    found = {}
    for _ in range(levels):
        tokens = grid[0].numel()
        multiple = max(1, min(bucket, tokens // BUCKETS))
        found[tokens] = _positions(grid.flatten(1) > 0, multiple)
        grid = _pooled(grid, 2)
    return found


def _pooled(grid: Tensor, side: int) -> Tensor:
    return max_pool2d(grid, side, ceil_mode=True)


def _positions(active: Tensor, bucket: int) -> Tensor:
    """Returns the positions [B, A] of the true values of [B, N]."""
    counts = active.sum(dim=1)
    number = min(active.shape[1], -(-max(1, int(counts.max())) // bucket) * bucket)
    order = active.int().argsort(dim=1, descending=True, stable=True)[:, :number]
    last = (counts - 1).clamp(min=0)[:, None]
    return order.gather(1, torch.arange(number, device=active.device).minimum(last))
