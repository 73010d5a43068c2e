"""Declares the LoRA key names that all families share. Never imports torch."""

from __future__ import annotations

from functools import partial

from katz_graph.models.family import LoraNames

lora_names = partial(
    LoraNames,
    prefixes=("lora_unet_", "lora_transformer_"),
    renaming="diffusers.utils.state_dict_utils:UNET_TO_DIFFUSERS",
)
