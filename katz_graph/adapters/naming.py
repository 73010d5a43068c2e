"""How LoRA files name their tensors: diffusers (old and new), PEFT and kohya, brought to one form with diffusers' own converters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_lora_to_diffusers, _maybe_map_sgm_blocks_to_diffusers
from diffusers.utils.state_dict_utils import DIFFUSERS_OLD_TO_PEFT, DIFFUSERS_TO_PEFT, UNET_TO_DIFFUSERS, convert_state_dict
from torch import Tensor, tensor

from katz_graph.errors import InputError

PARTS = ("unet", "text_encoder", "text_encoder_2")
KOHYA = ("lora_unet_", "lora_te_", "lora_te1_", "lora_te2_")
CHECKPOINT = ("model.diffusion_model.", "first_stage_model.")
OTHER_METHODS = {
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "lora_mid": "LoCon in Tucker form",
    "oft_": "OFT",
    "on_input": "IA3",
    ".diff": "full weight differences",
}
RENAMED = {
    "unet": UNET_TO_DIFFUSERS,
    "text_encoder": DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT,
    "text_encoder_2": DIFFUSERS_OLD_TO_PEFT | DIFFUSERS_TO_PEFT,
}
FACTOR = re.compile(r"(?P<module>.+)\.lora_(?P<factor>[AB])(\.\w+)?\.weight")
ALPHA = re.compile(r"(?P<module>.+?)(\.lora_[AB](\.\w+)?(\.weight)?)?\.alpha")

Named = dict[str, dict[str, dict[str, Tensor]]]
"""part -> module path -> "A" (down), "B" (up), and "alpha" where the file says one."""


def unified(path: str, tensors: Mapping[str, Tensor], layers_per_block: int) -> Named:
    """Tensors of a LoRA file by part and module path of diffusers' modules.

    layers_per_block: the UNet's, for files that number its blocks as SDXL's original code does. InputError for other methods than LoRA, and
    for names that mean nothing here.
    """
    if any(key.startswith(CHECKPOINT) and "lora" not in key for key in tensors):
        raise InputError(f"{path}: this is a checkpoint, expected a LoRA; load it with CheckpointLoaderSimple")
    for mark, method in OTHER_METHODS.items():
        key = next((key for key in tensors if mark in key), None)
        if key is not None:
            raise InputError(f"{path}: {method} is not supported ({key}), expected LoRA in diffusers, PEFT or kohya naming")
    named: Named = {part: {} for part in PARTS}
    for part, key, value in _by_part(path, tensors, layers_per_block):
        match = FACTOR.fullmatch(key) or ALPHA.fullmatch(key)
        if match is None:
            raise InputError(f"{path}: no LoRA in diffusers, PEFT or kohya naming: {part}.{key} is unknown")
        named[part].setdefault(match["module"], {})[match.groupdict().get("factor") or "alpha"] = value
    for part, modules in named.items():
        for module, factors in modules.items():
            missing = {"A", "B"} - factors.keys()
            if missing:
                raise InputError(f"{path}: {part}.{module} has no lora_{missing.pop()}: the file is incomplete")
    return named


def _by_part(path: str, tensors: Mapping[str, Tensor], layers_per_block: int) -> list[tuple[str, str, Tensor]]:
    if any(key.startswith(KOHYA) for key in tensors):
        tensors = _from_kohya(path, tensors, layers_per_block)
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for key, value in tensors.items():
        prefix, _, rest = key.removeprefix("base_model.model.").partition(".")
        if prefix in parts:
            parts[prefix][rest] = value
        elif prefix in ("down_blocks", "mid_block", "up_blocks"):
            parts["unet"][f"{prefix}.{rest}"] = value
        else:
            raise InputError(f"{path}: no LoRA for Stable Diffusion 1, 2 or XL in diffusers, PEFT or kohya naming: {key} is unknown")
    return [(part, key, value) for part, entries in parts.items() for key, value in convert_state_dict(entries, RENAMED[part]).items()]


def _from_kohya(path: str, tensors: Mapping[str, Tensor], layers_per_block: int) -> dict[str, Tensor]:
    config: Any = SimpleNamespace(layers_per_block=layers_per_block)
    try:
        converted, alphas = _convert_non_diffusers_lora_to_diffusers(_maybe_map_sgm_blocks_to_diffusers(dict(tensors), config))
    except (ValueError, KeyError, IndexError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: LoRA in kohya naming with parts that are not understood: {reason[:200]}") from None
    result: dict[str, Tensor] = converted | {key: tensor(alpha) for key, alpha in alphas.items()}
    return result
