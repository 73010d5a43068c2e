"""Limits a training (to a number of updates, or of minutes), and sets the learning rate along the
way.
"""

import math
import time
from dataclasses import dataclass, field

import torch


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


def set_rate(optimizer: torch.optim.Optimizer, peak: float, step: int, progress: float, warm: int = 100) -> None:
    """Sets the rate: a short linear rise, then half a cosine down to 2 % of the peak."""
    rate = peak * min(1.0, (step + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress))))
    for group in optimizer.param_groups:
        group["lr"] = rate * float(group.get("scale", 1.0))
