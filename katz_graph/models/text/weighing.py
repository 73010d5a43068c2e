"""Weighs the tokens of a text relative to an empty text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katz_graph.host.transfer import to_device


def weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns (hidden - empty) · w + empty, for `hidden` and `empty` [1, T, D]. `weights` are those
    of the first tokens; the rest has weight 1.
    """
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    told = torch.tensor(weights, dtype=hidden.dtype)
    factors[0, : len(weights), 0] = to_device(told, hidden.device)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)
