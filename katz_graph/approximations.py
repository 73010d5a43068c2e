"""Approximations that a person may allow, and what a picture says of how it was made."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from katz_graph.errors import InputError

if TYPE_CHECKING:
    from katz_graph.ir.program import Program

APPROXIMATIONS = ("stale-controlnet", "async-lora")


def allowed_names(names: str) -> frozenset[str]:
    """Approximations out of a list with commas. InputError for one that does not exist."""
    found = frozenset(filter(None, (part.strip() for part in names.split(","))))
    for name in sorted(found):
        if name not in APPROXIMATIONS:
            raise InputError(f"--allow {name}: no such approximation; choose from {', '.join(APPROXIMATIONS)}")
        if name == "async-lora":
            raise InputError("--allow async-lora: LoRAs are not loaded beside the first steps yet; leave it out")
    return found


def in_force(programs: Iterable[Program]) -> list[str]:
    """The approximations that programs make use of."""
    return ["stale-controlnet"] if any(program.delayed for program in programs) else []


def made_with(devices: str, dtype: str, approximated: Sequence[str]) -> str:
    """The text chunk `katz` of a picture."""
    return json.dumps({"approximations": list(approximated), "devices": devices, "dtype": dtype, "version": version("katz-graph")})
