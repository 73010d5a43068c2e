"""Declares the network attributes that all transformer families share. Never imports torch."""

from __future__ import annotations

from functools import partial

from katz_graph.models.families.shared.transformer_region import predict
from katz_graph.models.family import Network

transformer = partial(
    Network,
    noun="transformer",
    part="transformer",
    predict=predict,
    prepare="katz_graph.models.prepare:prepare",
)
