"""Limits a training (to a number of updates, or of minutes), sets the learning rate along the way,
and speeds it up on CPUs with bfloat16 matrix units.

Group norms stay in fp32 (their bfloat16 kernel is slow), attention runs as plain matrix products,
everything else under autocast: no change of weights, nor of results beyond rounding.
"""

import math
import time
from dataclasses import dataclass, field
from types import MethodType

import torch
import torch.nn.functional as F
from diffusers import ControlNetModel, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor


@dataclass(slots=True)
class Budget:
    """Limits a training: to `steps`, which can be repeated exactly, or to wall-clock `minutes`."""

    steps: int | None = None
    minutes: float | None = None
    started: float = field(default_factory=time.time)

    def progress(self, step: int) -> float:
        """Returns 0 at the start, 1 or more when the budget is used up."""
        if self.steps is not None:
            return step / self.steps
        if self.minutes is not None:
            return self.seconds / (60 * self.minutes)
        raise ValueError("a training budget needs steps or minutes")

    @property
    def seconds(self) -> float:
        return time.time() - self.started


def set_rate(
    optimizer: torch.optim.Optimizer, peak: float, step: int, progress: float, warm: int = 100
) -> None:
    """Sets the rate: a short linear rise, then half a cosine down to 2 % of the peak."""
    rate = (
        peak
        * min(1.0, (step + 1) / warm)
        * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    )
    for group in optimizer.param_groups:
        group["lr"] = rate * float(group.get("scale", 1.0))


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
