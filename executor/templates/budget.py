"""Defines the byte budgets of templates, and the errors of templates that do not fit. Never imports
torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from katz_graph.core.errors import InputError
from katz_graph.models.loading.residency import NoRoom
from katz_graph.settings.options import DISK_GB, GB

TEMPLATES = "templates"  # kind of items in a budget


@dataclass(frozen=True, slots=True)
class TemplatePlace:
    """Configures the store of templates: a folder that all workers see, the bytes of host memory of
    each worker and of the folder, and the bytes per second from the store if they are given.
    """

    folder: str
    memory_bytes: int
    disk_bytes: int
    bytes_per_second: float | None = None


def parse_template_place(folder: Path, budget: str, link: float | None) -> TemplatePlace:
    """Parses `--template-gb` MEMORY[,DISK] and checks `--store-link`. Raises InputError if invalid,
    or if the disk has no room.
    """
    sizes = budget if "," in budget else f"{budget},{DISK_GB}"
    try:
        numbers = [float(part) for part in sizes.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != 2 or not all(0 <= number < math.inf for number in numbers):
        raise InputError(f"--template-gb {budget}: expected MEMORY[,DISK] in GB, for example 4,32")
    memory, disk = (int(number * GB) for number in numbers)
    if not disk:
        raise InputError(f"--template-gb {budget}: leaves no room for templates on the disk")
    if link is not None and not 0 < link < math.inf:
        raise InputError(f"--store-link {link}: expected gigabytes per second above 0")
    return TemplatePlace(str(folder), memory, disk, None if link is None else link * 1e9)


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
