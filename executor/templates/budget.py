"""Defines the byte budgets of templates, and the errors of templates that do not fit. Never imports
torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from katz_graph.core.errors import InputError
from katz_graph.models.loading.residency import NoRoom
from katz_graph.settings.options import GB

TEMPLATES = "templates"  # kind of items in a budget


@dataclass(frozen=True, slots=True)
class TemplateBudget:
    """Limits the bytes of templates. `disk_bytes` is 0 if templates are stored in memory only."""

    memory_bytes: int
    disk_bytes: int = 0


def parse_template_budget(text: str) -> TemplateBudget:
    """Parses MEMORY[,DISK], two numbers in GB. Raises InputError if invalid, or if both are 0."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or not all(0 <= number < math.inf for number in numbers):
        raise InputError(
            f"--template-gb {text}: expected MEMORY or MEMORY,DISK in GB, for example 16,200"
        )
    budget = TemplateBudget(*(int(number * GB) for number in numbers))
    if not budget.memory_bytes and not budget.disk_bytes:
        raise InputError(f"--template-gb {text}: leaves no room for templates; omit the option")
    return budget


class TooLarge(NoRoom):
    """Signals that a template exceeds the whole budget."""


def no_room(size: int, budget_bytes: float, place: str) -> NoRoom:
    """Returns the error for a template of `size` bytes. `place`: "memory" or "the disk"."""
    budget = f"the budget of {budget_bytes:,} bytes for {place}"
    if size > budget_bytes:
        return TooLarge(f"takes {size:,} bytes, more than {budget}: raise --template-gb", TEMPLATES)
    return NoRoom(
        f"takes {size:,} bytes; templates in use or being filled leave too little of {budget}",
        TEMPLATES,
    )
