"""Speeds training up on CPUs with bfloat16 matrix units: group norms stay in fp32 (their bfloat16
kernel is slow), attention runs as plain matrix products, everything else under autocast. Changes no
weights and no results beyond rounding.
"""

from types import MethodType

import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor


def _group_norm(self: torch.nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)


def prepare(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a model channels-last, with fp32 group norms and matrix-product attention, in place."""
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.forward = MethodType(_group_norm, module)  # type: ignore[method-assign]
    if isinstance(model, UNet2DConditionModel | ControlNetModel):
        model.set_attn_processor(AttnProcessor())
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)
