"""Computes blocks of transformers' BERT in eval mode with our kernels, see `prepare`."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.models.bert.modeling_bert import BertOutput, BertSelfOutput

from katz_graph.models.prepared.norms import residual_norm


class _Output:
    LayerNorm: nn.LayerNorm
    dense: nn.Linear

    @staticmethod
    def unsupported(layer: Any) -> str:
        return "dropout" if layer.dropout.p and layer.training else ""

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return residual_norm(self.LayerNorm, self.dense(hidden_states), input_tensor)[1]


class PreparedBertSelfOutput(_Output, BertSelfOutput):  # type: ignore[misc]
    """Adds a linear layer to a residual, and normalises the sum."""


class PreparedBertOutput(_Output, BertOutput):  # type: ignore[misc]
    """Adds a linear layer to a residual, and normalises the sum."""
