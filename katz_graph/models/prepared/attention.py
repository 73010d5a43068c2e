"""Computes diffusers' attention layers without an inspection of their processor at each call, see
`prepare`.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from diffusers.models.attention_processor import Attention
from torch import Tensor


class PreparedAttention(Attention):  # type: ignore[misc]
    """Calls the layer's processor. diffusers first inspects its signature, which takes as long as
    the products of a small layer.
    """

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        **options: Any,
    ) -> Any:
        if not _takes(self.processor.__class__, *options):
            return super().forward(hidden_states, encoder_hidden_states, attention_mask, **options)
        return self.processor(
            self,
            hidden_states,
            encoder_hidden_states=encoder_hidden_states,
            attention_mask=attention_mask,
            **options,
        )


@cache
def _takes(processor: Any, *options: str) -> bool:
    """Returns whether the signature of a class of processors names all of these options."""
    return set(options) <= set(inspect.signature(processor.__call__).parameters)
