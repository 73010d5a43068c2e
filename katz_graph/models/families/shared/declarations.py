"""Declares the network attributes of all transformer families, and the LoRA key names of all
families. Never imports torch.
"""

from __future__ import annotations

from functools import partial

from katz_graph.models.families.shared.transformer_region import predict
from katz_graph.models.family import LoraNames, Network

transformer = partial(
    Network,
    noun="transformer",
    part="transformer",
    predict=predict,
    prepare="katz_graph.models.prepare:prepare",
)

lora_names = partial(
    LoraNames,
    prefixes=("lora_unet_", "lora_transformer_"),
    renaming="diffusers.utils.state_dict_utils:UNET_TO_DIFFUSERS",
)
