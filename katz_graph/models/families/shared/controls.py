"""Counts the blocks of a transformer's ControlNet and compares its sizes with the transformer's.
Never imports torch.
"""

from __future__ import annotations

from collections.abc import Callable

from katz_graph.core.errors import InputError
from katz_graph.core.recipe import Component
from katz_graph.models.configuration import config_value
from katz_graph.models.family import Architecture


def numbered_blocks(control: Component) -> int:
    """Counts the blocks of a ControlNet with one chain of blocks or two."""
    return sum(config_value(control, name, int, 0) for name in ("num_layers", "num_single_layers"))


def check_sizes(
    control: Component, network: Component, architecture: Callable[[Component], Architecture]
) -> None:
    """Raises InputError, with both numbers, if the ControlNet's sizes differ from the network's."""
    ours, theirs = architecture(control), architecture(network)
    widths = [
        config_value(one, "num_attention_heads", int) * config_value(one, "attention_head_dim", int)
        for one in (control, network)
    ]
    for name, got, wanted in (
        ("width", *widths),
        # 0 in a ControlNet that reads no text
        ("text width", ours.text_width or theirs.text_width, theirs.text_width),
        ("pooled text width", ours.pooled_width, theirs.pooled_width),
        ("latent channels", ours.latent_channels, theirs.latent_channels),
    ):
        if got != wanted:
            raise InputError(
                f"{control.folder}: the ControlNet does not fit the transformer: its {name} is "
                f"{got}, the transformer in {network.folder} has {wanted}"
            )
