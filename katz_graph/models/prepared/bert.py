"""Computes blocks of transformers' BERT in eval mode with our kernels, see `prepare`."""

from __future__ import annotations

from torch import Tensor
from transformers.models.bert.modeling_bert import BertOutput, BertSelfOutput

from katz_graph.models.prepared.norms import residual_norm


class PreparedBertSelfOutput(BertSelfOutput):  # type: ignore[misc]
    """Adds a linear layer to a residual, and normalises the sum."""

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return residual_norm(self.LayerNorm, self.dense(hidden_states), input_tensor)[1]


class PreparedBertOutput(BertOutput):  # type: ignore[misc]
    """Adds a linear layer to a residual, and normalises the sum."""

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        return residual_norm(self.LayerNorm, self.dense(hidden_states), input_tensor)[1]
