"""Weighs the tokens of a text against those of an empty one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from katz_graph.host.transfer import to_device


def weigh(hidden: Tensor, empty: Tensor, weights: Sequence[float]) -> Tensor:
    """Returns (hidden - empty) · w + empty, both [1, T, D], for the first tokens' weights; others
    have weight 1.
    """
    factors = hidden.new_ones(1, hidden.shape[1], 1)
    told = torch.tensor(weights, dtype=hidden.dtype)
    factors[0, : len(weights), 0] = to_device(told, hidden.device)
    return torch.where(factors == 1.0, hidden, (hidden - empty) * factors + empty)
