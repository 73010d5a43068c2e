"""Declares attributes that several families share: of transformers, of LoRA key names, of texts and
of noise levels. Never imports torch.
"""

from __future__ import annotations

from functools import partial

from katz_graph.models.families.shared.transformer_region import predict
from katz_graph.models.family import Configuration, LoraNames, Network

DESCRIBING = (  # chat template of several families' text encoders
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)

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


def shifted_flow(mu: float) -> Configuration:
    """Returns the scheduler of a flow whose levels are shifted by e^mu at every picture size."""
    return {
        "_class_name": "FlowMatchEulerDiscreteScheduler",
        "num_train_timesteps": 1000,
        "use_dynamic_shifting": True,
        "base_shift": mu,
        "max_shift": mu,
    }
