"""Runs a training within a budget (updates or minutes) with a learning-rate schedule, and speeds it
up on CPUs with bfloat16 matrix units.

Group norms stay in fp32 (their bfloat16 kernel is slow), attention runs as plain matrix products,
and the rest runs under autocast. Weights do not change, and results differ only by rounding.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MethodType

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoModel, ModelMixin
from diffusers.models.attention_processor import Attention, AttnProcessor
from torch.nn.attention import SDPBackend, sdpa_kernel

# Muon's rate as a multiple of AdamW's 1.2e-3. Factors of 2, 5, 10 and 20 end at a loss of 0.472,
# 0.382, 0.365 and 0.371 after 350 updates, AdamW alone at 0.488.
HIDDEN = 8.0


@dataclass(slots=True)
class Budget:
    """Limits a training to `steps`, which is exactly repeatable, or to wall-clock `minutes`."""

    steps: int | None = None
    minutes: float | None = None
    started: float = field(default_factory=time.time)

    def progress(self, step: int) -> float:
        """Returns 0 at the start, and 1 or more when the budget is used up."""
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
    """Sets the learning rate: a short linear warm-up, then half a cosine down to 2 % of the
    peak.
    """
    rate = (
        peak
        * min(1.0, (step + 1) / warm)
        * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    )
    for group in optimizer.param_groups:
        group["lr"] = rate * float(group.get("scale", 1.0))


def squared_error(
    predicted: torch.Tensor, wanted: torch.Tensor, weight: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the mean of the squared differences [B, C, H, W], weighted by `weight` [B]."""
    each = (predicted.float() - wanted).square().mean(dim=(1, 2, 3))
    return (each if weight is None else weight * each).mean()


def save_whole(value: object, file: Path) -> None:
    """Saves a value with torch atomically: the file is complete or does not appear."""
    torch.save(value, file.with_suffix(".new"))
    file.with_suffix(".new").replace(file)


class Average:
    """Tracks the exponential moving average of parameters."""

    def __init__(self, parameters: list[torch.nn.Parameter], decay: float) -> None:
        self.parameters, self.decay = parameters, decay
        self.averages = [parameter.detach().clone() for parameter in parameters]

    def update(self, step: int) -> None:
        decay = min(self.decay, (step + 1) / (step + 10))
        torch._foreach_lerp_(self.averages, [p.detach() for p in self.parameters], 1 - decay)

    def swap(self) -> None:
        """Swaps the average and the live values; call again to undo."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            live = parameter.detach().clone()
            parameter.data.copy_(average)
            average.copy_(live)


def hidden_weights(*models: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Returns the weight matrices of the linear layers in transformer blocks."""
    layers = (
        module
        for model in models
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and "block" in name
    )
    return [parameter for layer in layers for parameter in layer.parameters() if parameter.ndim > 1]


class Descent:
    """Trains parameters with AdamW under a budget, and the `hidden` ones, a transformer's matrices,
    with Muon (Jordan 2024). Muon gives all directions of an update equal length and needs a third
    as many updates as AdamW.

    `peak`: the highest rate, times `HIDDEN` for Muon. `average`: decay of the moving average that
    `save` writes instead of the live values; None saves the live values. `every`: updates between
    saves.
    """

    def __init__(
        self,
        name: str,
        parameters: list[torch.nn.Parameter],
        budget: Budget,
        peak: float,
        average: float | None = None,
        every: int = 250,
        hidden: Sequence[torch.nn.Parameter] = (),
    ) -> None:
        self.name, self.parameters, self.budget, self.peak = name, parameters, budget, peak
        self.every, self.step = every, 0
        self.average = None if average is None else Average(parameters, average)
        apart = {id(parameter) for parameter in hidden}
        others = [parameter for parameter in parameters if id(parameter) not in apart]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(others, peak, weight_decay=1e-3, betas=(0.9, 0.99), fused=True)
        ]
        if hidden:
            group = {"params": list(hidden), "scale": HIDDEN}
            self.optimizers.append(
                torch.optim.Muon([group], peak, weight_decay=1e-3, adjust_lr_fn="match_rms_adamw")
            )

    def run(
        self,
        loss: Callable[[float], torch.Tensor],
        save: Callable[[], None],
        saved: Callable[[], None] = lambda: None,
    ) -> None:
        """Trains until the budget is used up. `loss(progress)` draws a batch. Calls `saved` after
        every save but the last, once the live values are restored.
        """
        shown = 1.0
        while (progress := self.budget.progress(self.step)) < 1:
            for optimizer in self.optimizers:
                set_rate(optimizer, self.peak, self.step, progress)
                optimizer.zero_grad(set_to_none=True)
            with sdpa_kernel(SDPBackend.MATH):  # an eighth faster than fused for short rows
                one = loss(progress)
                one.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
            if self.average is not None:
                self.average.update(self.step)
            self.step += 1
            shown += 0.02 * (float(one.detach()) - shown)
            if self.step % 50 == 0:
                seconds = self.budget.seconds
                print(f"{self.name} {self.step} {seconds:.0f}s loss {shown:.4f}", flush=True)
            if self.step % self.every == 0:
                self._save(save)
                saved()
        self._save(save)
        print(f"{self.name} done after {self.step} updates", flush=True)

    def _save(self, save: Callable[[], None]) -> None:
        if self.average is None:
            return save()
        self.average.swap()
        save()
        self.average.swap()

    def keep(self, file: Path, generator: np.random.Generator) -> None:
        """Writes the state that `go_on` needs, atomically."""
        state = {
            "step": self.step,
            "seconds": self.budget.seconds,
            "parameters": [parameter.detach() for parameter in self.parameters],
            "average": [] if self.average is None else self.average.averages,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "torch": torch.get_rng_state(),
            "generator": generator.bit_generator.state,
        }
        save_whole(state, file)

    def go_on(self, file: Path, generator: np.random.Generator) -> None:
        """Resumes from the state that `keep` wrote; the updates are the same as without the
        interruption.
        """
        state = torch.load(file, weights_only=True)
        for parameter, saved in zip(self.parameters, state["parameters"], strict=True):
            parameter.data.copy_(saved)
        if self.average is not None:
            self.average.averages = state["average"]
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["torch"])
        generator.bit_generator.state = state["generator"]
        self.step = int(state["step"])
        self.budget.started -= float(state["seconds"])


def _group_norm(self: torch.nn.GroupNorm, x: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x.float(), self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)


def prepare(model: torch.nn.Module) -> torch.nn.Module:
    """Makes a model channels-last, with fp32 group norms and matrix-product attention, in place."""
    for module in model.modules():
        if isinstance(module, torch.nn.GroupNorm):
            module.forward = MethodType(_group_norm, module)  # type: ignore[method-assign]
        elif isinstance(module, Attention):
            module.set_processor(AttnProcessor())
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def load_model(folder: Path) -> ModelMixin:
    """Loads a network or ControlNet of any class, in fp32."""
    return AutoModel.from_pretrained(str(folder), torch_dtype=torch.float32)  # rejects a Path


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)
